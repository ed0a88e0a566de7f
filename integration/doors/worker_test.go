package doors_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/morainefs/moraine/client"
)

// worker takes steps of a run.
type worker struct {
	*run
	rng *rand.Rand
	// away is set while this worker keeps the bucket down: it then waits for no
	// other worker that may wait for the bucket.
	away bool
}

// step is a kind of operation of a worker.
type step struct {
	weight int
	do     func(w *worker, ctx context.Context)
}

// changes need no bucket, the others may.
var changes = []step{
	{18, (*worker).put}, {10, (*worker).write}, {6, (*worker).append}, {6, (*worker).truncate},
	{8, (*worker).rename}, {6, (*worker).clone}, {6, (*worker).remove}, {2, (*worker).renameDir}, {14, (*worker).queue},
}

var all = append(slices.Clone(changes), []step{
	{20, (*worker).read}, {4, (*worker).list}, {10, (*worker).cycle}, {2, (*worker).cancel}, {2, (*worker).kill}, {1, (*worker).crash},
}...)

func (w *worker) work(ctx context.Context) {
	for range steps() {
		if w.over() {
			return
		}
		w.pick(all)(w, ctx)
	}
}

// pick chooses a step by weight.
func (w *worker) pick(from []step) func(*worker, context.Context) {
	sum := 0
	for _, s := range from {
		sum += s.weight
	}
	n := w.rng.IntN(sum)
	for _, s := range from {
		if n -= s.weight; n < 0 {
			return s.do
		}
	}
	panic("the weights do not add up")
}

// alone calls fn with n different directories, which no other worker uses.
func (w *worker) alone(n int, fn func(d []*modelDir)) {
	order := w.rng.Perm(len(w.dirs))[:n]
	for _, i := range slices.Sorted(slices.Values(order)) {
		d := w.dirs[i]
		if !w.away {
			d.mu.Lock()
		} else if !d.mu.TryLock() {
			return // its user may wait for the bucket
		}
		defer d.mu.Unlock()
	}
	dirs := make([]*modelDir, n)
	for i, at := range order {
		dirs[i] = w.dirs[at]
	}
	fn(dirs)
}

// name is any valid file name.
func (w *worker) name() string {
	return []string{"f0", "f1", "f2", "f3", "ä +%?=&.bin"}[w.rng.IntN(5)]
}

// file calls fn with an existing file, if there is one.
func (w *worker) file(fn func(d *modelDir, name string, f *modelFile)) {
	w.alone(1, func(dirs []*modelDir) {
		if name, f := w.anyFile(dirs[0]); f != nil {
			fn(dirs[0], name, f)
		}
	})
}

func (w *worker) anyFile(d *modelDir) (string, *modelFile) {
	names := []string{}
	for n := range d.files {
		names = append(names, n)
	}
	if len(names) == 0 {
		return "", nil
	}
	slices.Sort(names)
	n := names[w.rng.IntN(len(names))]
	return n, d.files[n]
}

// doorOf returns any door of a kind.
func doorOf[D door](w *worker) D {
	for {
		if d, ok := w.doors[w.rng.IntN(len(w.doors))].(D); ok {
			return d
		}
	}
}

// bytes returns new content, of all sizes around those of stripes and pieces.
func (w *worker) bytes() []byte {
	n := 0
	switch p := w.rng.IntN(100); {
	case p < 5:
	case p < 30:
		n = 1 + w.rng.IntN(200)
	case p < 50:
		n = 4095 + w.rng.IntN(3)
	case p < 92:
		n = w.rng.IntN(300_000)
	case p < 99 || !long():
		n = w.rng.IntN(2 << 20)
	default:
		n = 16<<20 - 10_000 + w.rng.IntN(2<<20) // in one part, or two
	}
	data := make([]byte, n)
	var key [32]byte
	for i := range key {
		key[i] = byte(w.rng.Uint32())
	}
	_, _ = rand.NewChaCha8(key).Read(data)
	return data
}

// done records a change, or its failure.
func (w *worker) done(f *modelFile, d door, what, at string, n int, err error) bool {
	f.did("%s %s %s (%d bytes)", d.name(), what, at, n)
	if err != nil {
		w.fail(f, "%s cannot %s %s: %v", d.name(), what, at, err)
		return false
	}
	verb, _, _ := strings.Cut(what, " ")
	w.count(d.name()+" "+verb, 0, n)
	return true
}

func (w *worker) put(ctx context.Context) {
	w.alone(1, func(dirs []*modelDir) {
		d, name, data := dirs[0], w.name(), w.bytes()
		f := d.files[name]
		if f == nil {
			f = &modelFile{}
		}
		by := doorOf[door](w)
		if w.done(f, by, "put", w.path(d, name), len(data), by.put(ctx, w.path(d, name), data)) {
			f.data, d.files[name] = data, f
		}
	})
}

func (w *worker) write(ctx context.Context) {
	w.file(func(d *modelDir, name string, f *modelFile) {
		by, data, off := doorOf[changer](w), w.bytes(), w.rng.IntN(len(f.data)+10_000)
		if len(data) == 0 || !w.done(f, by, fmt.Sprintf("write from %d on of", off), w.path(d, name), len(data), by.write(ctx, w.path(d, name), off, data)) {
			return
		}
		f.data = slices.Clone(f.data)
		if grow := off + len(data) - len(f.data); grow > 0 {
			f.data = append(f.data, make([]byte, grow)...)
		}
		copy(f.data[off:], data)
	})
}

func (w *worker) append(ctx context.Context) {
	w.file(func(d *modelDir, name string, f *modelFile) {
		by, data := doorOf[changer](w), w.bytes()
		if w.done(f, by, "append", w.path(d, name), len(data), by.append(ctx, w.path(d, name), data)) {
			f.data = slices.Concat(f.data, data)
		}
	})
}

func (w *worker) truncate(ctx context.Context) {
	w.file(func(d *modelDir, name string, f *modelFile) {
		by, size := doorOf[changer](w), w.rng.IntN(len(f.data)*5/4+100)
		if !w.done(f, by, fmt.Sprintf("truncate to %d", size), w.path(d, name), 0, by.truncate(ctx, w.path(d, name), size)) {
			return
		}
		f.data = slices.Clone(f.data[:min(size, len(f.data))])
		f.data = append(f.data, make([]byte, size-len(f.data))...)
	})
}

func (w *worker) rename(ctx context.Context) {
	w.alone(2, func(dirs []*modelDir) {
		from, to := dirs[0], dirs[w.rng.IntN(2)]
		name, f := w.anyFile(from)
		target := w.name()
		if f == nil || from == to && name == target {
			return
		}
		by := doorOf[changer](w)
		if w.done(f, by, "rename "+w.path(from, name)+" to", w.path(to, target), 0, by.rename(ctx, w.path(from, name), w.path(to, target))) {
			delete(from.files, name)
			to.files[target] = f
		}
	})
}

func (w *worker) clone(ctx context.Context) {
	w.alone(2, func(dirs []*modelDir) {
		from, to := dirs[0], dirs[w.rng.IntN(2)]
		name, f := w.anyFile(from)
		target := w.name()
		if f == nil || from == to && name == target {
			return
		}
		made := &modelFile{data: f.data, past: slices.Clone(f.past)}
		by := doorOf[cloner](w)
		if w.done(made, by, "clone "+w.path(from, name)+" as", w.path(to, target), 0, by.clone(ctx, w.path(from, name), w.path(to, target))) {
			to.files[target] = made
		}
	})
}

func (w *worker) remove(ctx context.Context) {
	w.file(func(d *modelDir, name string, f *modelFile) {
		by := doorOf[door](w)
		if w.done(f, by, "remove", w.path(d, name), 0, by.remove(ctx, w.path(d, name))) {
			delete(d.files, name)
		}
	})
}

// renameDir gives a directory its other name.
func (w *worker) renameDir(ctx context.Context) {
	w.alone(1, func(dirs []*modelDir) {
		d, by := dirs[0], doorOf[changer](w)
		from, other := w.path(d, ""), d.names[0]
		if d.name == other {
			other = d.names[1]
		}
		was := d.name
		d.name = other
		if err := by.rename(ctx, from, w.path(d, "")); err != nil {
			w.fail(nil, "%s cannot rename %s to %s: %v", by.name(), was, other, err)
		}
		for _, f := range d.files {
			f.did("%s rename directory %s to %s", by.name(), was, other)
		}
		w.count(by.name()+" rename directory", 0, 0)
	})
}

func (w *worker) read(ctx context.Context) {
	w.file(func(d *modelDir, name string, f *modelFile) { w.readFile(ctx, d, name, f) })
}

// readFile reads a file, whole or a range of it, through any interface.
func (w *worker) readFile(ctx context.Context, d *modelDir, name string, f *modelFile) bool {
	by, at := doorOf[door](w), w.path(d, name)
	if len(f.data) == 0 || w.rng.IntN(2) == 0 {
		got, err := by.read(ctx, at)
		return w.compare(f, by, at, 0, got, f.data, err)
	}
	off := w.rng.IntN(len(f.data))
	n := 1 + w.rng.IntN(len(f.data)-off)
	got, err := by.readRange(ctx, at, off, n)
	return w.compare(f, by, at, off, got, f.data[off:off+n], err)
}

func (w *worker) list(ctx context.Context) {
	w.alone(1, func(dirs []*modelDir) { w.checkList(ctx, dirs[0], doorOf[door](w)) })
}

// queue queues a move of a file, a directory, or everything, and does not wait.
func (w *worker) queue(ctx context.Context) {
	kind := []client.JobKind{flush, flush, flush, evict, evict, stage}[w.rng.IntN(6)]
	w.alone(1, func(dirs []*modelDir) {
		at := w.path(dirs[0], "")
		switch name, f := w.anyFile(dirs[0]); {
		case w.rng.IntN(20) == 0:
			at = w.root
		case f != nil && w.rng.IntN(3) > 0:
			at = w.path(dirs[0], name)
			f.did("queue %v", kind)
		}
		if _, err := w.queueMove(ctx, kind, at); err != nil {
			w.fail(nil, "%v of %s cannot be queued: %v", kind, at, err)
		}
	})
}

func (w *worker) queueMove(ctx context.Context, kind client.JobKind, at string) (client.Job, error) {
	a, err := w.w.admin.Stat(ctx, at)
	if err != nil {
		return client.Job{}, err
	}
	jobs, err := w.w.admin.Jobs().Queue(ctx, kind, a.Inode())
	if err != nil {
		return client.Job{}, err
	}
	w.count("tier "+string(kind), 0, 0)
	return jobs[0], nil
}

// cycle flushes and evicts a file, and then reads it, or changes it in place: it is
// only in the bucket.
func (w *worker) cycle(ctx context.Context) {
	w.file(func(d *modelDir, name string, f *modelFile) {
		for _, kind := range []client.JobKind{flush, evict} {
			j, err := w.queueMove(ctx, kind, w.path(d, name))
			if err == nil {
				f.did("%v", kind)
				_, err = w.w.waitJob(ctx, j)
			}
			if err != nil {
				w.fail(f, "%v of %s: %v", kind, w.path(d, name), err)
				return
			}
		}
		w.readFile(ctx, d, name, f)
	})
}

// cancel cancels the first job that moves something.
func (w *worker) cancel(ctx context.Context) {
	for j, err := range w.w.admin.Jobs().List(ctx, false) {
		if err != nil {
			w.fail(nil, "the jobs cannot be listed: %v", err)
			return
		}
		if j.Kind != flush && j.Kind != evict && j.Kind != stage && j.Kind != client.JobMoveTree {
			continue
		}
		if err := w.w.admin.Jobs().Cancel(ctx, j.ID); !retried(err) {
			w.fail(nil, "%v cannot be canceled: %v", j, err)
		}
		w.count("tier cancel", 0, 0)
		return
	}
}

// kill kills the bucket's server, changes files while it is down, and restarts it.
func (w *worker) kill(ctx context.Context) {
	if !w.outage.TryLock() {
		return
	}
	defer w.outage.Unlock()
	if err := w.w.store.Kill(); err != nil {
		w.fail(nil, "the bucket cannot be killed: %v", err)
		return
	}
	w.away = true
	for range 2 + w.rng.IntN(8) {
		w.pick(changes)(w, ctx)
	}
	w.away = false
	if err := w.w.store.Restart(); err != nil {
		w.fail(nil, "the bucket cannot be started: %v", err)
	}
	w.mu.Lock()
	w.tally.kills++
	w.mu.Unlock()
}

// crash kills a chunkserver with its mover, changes files while it is down, and
// restarts it. Only in the long form: its jobs wait for the end of their leases.
func (w *worker) crash(ctx context.Context) {
	if !long() || !w.down.TryLock() {
		return
	}
	defer w.down.Unlock()
	node := fmt.Sprintf("n%d", 1+w.rng.IntN(3))
	w.w.Kill(node)
	for range 1 + w.rng.IntN(4) {
		w.pick(changes)(w, ctx)
	}
	if err := w.w.Restart(node); err != nil {
		w.fail(nil, "%s cannot be started: %v", node, err)
	}
	w.mu.Lock()
	w.tally.crashes++
	w.mu.Unlock()
}
