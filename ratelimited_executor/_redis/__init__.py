"""The common part of everything that uses Redis: a client, and scripts in Lua."""
