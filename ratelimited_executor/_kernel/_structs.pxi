# What structs have in C beside the fields of ``fields.py``, which come before these lines: see ``.packaging/structs.py``.

cdef class RecordFields:
    cdef object place
    cdef unsigned char state, rank

    @property
    def _place(self):
        return self.place

    @_place.setter
    def _place(self, value):
        self.place = value
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(self)

    @property
    def _state(self):
        return STATES[self.state]

    @_state.setter
    def _state(self, value):
        self.state = STATES.index(value)

    @property
    def _class(self):
        return CLASSES[self.rank]

    @_class.setter
    def _class(self, value):
        self.rank = value


cdef class GridFields:
    cdef object piece  # the piece in force, from which the numbers below are read
    cdef long long start, step, unit
    cdef rle_wide base


cdef class CoroutineFields:
    cdef object get_factory  # of the loop
    cdef dict loop_fields  # holds the factory, without a Python call (saves 0.05), if the loop is asyncio's
    cdef dict task_options
    cdef object timers  # of the loop of a simulation


cdef class JobFields:
    cdef object known  # the duration of which the next fields are
    cdef bint is_log_normal
    cdef double mu, sigma
