package transport

import "sync/atomic"

// maxIdleWorkers limits the goroutines that wait for work.
const maxIdleWorkers = 128

// task is a worker's task for a connection: serve a request or, without one, be the
// reader.
type task struct {
	conn *serverConn
	req  *request
}

func (t task) do() {
	if t.req != nil {
		t.req.serve()
	} else {
		t.conn.readLoop()
	}
	t.conn.routine.end()
}

// workers run tasks, each at once, on a goroutine that an earlier task has left or
// on a fresh one. A used one has the stack that a handler needs; growing it was a
// tenth of the cost of a small request.
type workers struct {
	tasks chan task
	idle  atomic.Int32
	done  chan struct{} // closed when there are no more tasks
	all   goroutines
}

func newWorkers() *workers {
	return &workers{tasks: make(chan task), done: make(chan struct{})}
}

// start runs t, and counts it for its connection.
func (w *workers) start(t task) {
	t.conn.routine.begin()
	select {
	case w.tasks <- t:
	default:
		w.all.run(func() { w.work(t) })
	}
}

func (w *workers) work(t task) {
	for {
		t.do()
		t = task{} // release the task while waiting
		if w.idle.Add(1) > maxIdleWorkers {
			w.idle.Add(-1)
			return
		}
		select {
		case t = <-w.tasks:
			w.idle.Add(-1)
		case <-w.done:
			return
		}
	}
}

// stop returns when all workers have ended.
func (w *workers) stop() {
	close(w.done)
	w.all.wait()
}
