// One process of a round under Bottleneck: node bottleneck.js '{the Task of bench/shared/limit.py as JSON}'
// A pace is minTime; keys have a Group whose limiters have a reservoir; slots are maxConcurrent.
const Bottleneck = require('bottleneck');
const Redis = require('ioredis');
const dgram = require('dgram');

const task = JSON.parse(process.argv[2]);
const { limit, load } = task;
const [START, LEAVE, BEGUN, ALIVE] = [0, 1, 2, 3];
const ALIVE_MS = 100;
const HOT = 1; // as in worker.py
const socket = dgram.createSocket('udp4');
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
let asked = 0;
let started = 0;

function tell(kind, key = 0, submitted = 0) {
  started += kind === START;
  const cpu = process.cpuUsage();
  const message = Buffer.alloc(39); // "!BHIIIddd"
  message.writeUInt8(kind, 0);
  message.writeUInt16BE(task.number, 1);
  message.writeUInt32BE(key, 3);
  message.writeUInt32BE(asked, 7);
  message.writeUInt32BE(started, 11);
  message.writeDoubleBE(submitted, 15);
  message.writeDoubleBE(now(), 23);
  message.writeDoubleBE((cpu.user + cpu.system) / 1e6, 31);
  socket.send(message);
}

function asks(counts = true) {
  asked += counts;
  return now();
}

const url = new URL(task.backend);
const shared = {
  id: task.group,
  datastore: 'ioredis',
  clearDatastore: false,
  Redis,
  clientOptions: { host: url.hostname, port: Number(url.port) },
};
const onError = (error) => console.error(error);

function work() {
  const until = process.cpuUsage();
  while (load.work) {
    const used = process.cpuUsage(until);
    if (used.user + used.system >= 1e6 * load.work) return;
  }
}

async function closed() {
  const limiter = new Bottleneck({ ...shared, minTime: (1000 * limit.seconds) / limit.count });
  limiter.on('error', onError);
  const one = () => {
    const submitted = asks();
    return limiter.schedule(async () => {
      tell(START, 0, submitted);
      work();
    });
  };
  if (load.kind === 'sparse') {
    for (;;) {
      await one();
      await sleep(load.pause[0] + Math.random() * (load.pause[1] - load.pause[0]));
    }
  }
  for (let worker = 0; worker < load.workers; worker += 1) (async () => { for (;;) await one(); })();
}

async function arrivals() {
  const group = new Bottleneck.Group({
    ...shared,
    reservoir: limit.key_count,
    reservoirRefreshAmount: limit.key_count,
    reservoirRefreshInterval: 1000,
    timeout: 60000,
  });
  group.on('error', onError);
  let at = now();
  for (;;) {
    at -= Math.log(1 - Math.random()) / load.rate;
    await sleep(Math.max(0, at - now()));
    const key = Math.random() < load.hot ? HOT : HOT + 1 + Math.floor(Math.random() * load.keys);
    const submitted = asks(key !== HOT);
    group.key(`key${key}`).schedule(async () => tell(START, key, submitted));
  }
}

async function slots() {
  const limiter = new Bottleneck({ ...shared, maxConcurrent: limit.slots });
  limiter.on('error', onError);
  for (let worker = 0; worker < load.workers; worker += 1) {
    (async () => {
      for (;;) {
        const submitted = asks();
        await limiter.schedule(async () => {
          tell(START, 0, submitted);
          await sleep(load.work);
          tell(LEAVE);
        });
      }
    })();
  }
}

setTimeout(() => process.exit(0), 1000 * task.lifetime);
// Connected, it sends within the call; otherwise it would look the address up first, and a start would count late.
socket.connect(task.counter, '127.0.0.1', () => {
  setInterval(() => tell(ALIVE), ALIVE_MS);
  tell(BEGUN);
  ({ closed, sparse: closed, arrivals, slots })[load.kind]();
});
