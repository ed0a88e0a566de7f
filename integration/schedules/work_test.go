package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
)

// The work of the crew: the clients' names, as in clients.
const (
	writer       = "c1" // of files that are replaced whole, and removed
	patcher      = "c2" // of files in place
	checkpointer = "c3"
	reader       = "c4"
	cachedReader = "c5" // under leases
)

const (
	runPath  = "/runs/r"
	smallDir = "/small"
	// filesAtOnce limits the existing files of a writer, so that the devices have
	// space.
	filesAtOnce = 24
	largest     = 3 << 20
	// memoryPrefix begins the names of files that are acknowledged at level memory.
	memoryPrefix = "/m"
	smallAtOnce  = 64
	small        = 40 << 10
	patchedSize  = 1 << 20
	// patience is how long an operation may take; readers wait for less.
	patience     = 25 * time.Second
	readPatience = 10 * time.Second
)

// schemes are those of the files; each survives the loss of at least one host.
var schemes = []moraine.Scheme{{K: 2, M: 2}, {K: 2, M: 1}, {K: 1, M: 2}, {K: 3, M: 2}}

// level is the level at which a file is acknowledged.
func (f *file) level() moraine.Level {
	if f.memory {
		return moraine.Memory
	}
	return moraine.NVMe
}

// scheme draws one for a file. A scheme for bytes in memory survives the loss of
// two hosts: one with a damaged disk, and one that is killed.
func (f *file) scheme(rng *rand.Rand) moraine.Scheme {
	for {
		if s := schemes[rng.IntN(len(schemes))]; s.M > 1 || !f.memory {
			return s
		}
	}
}

// work is the work while faults act.
type work struct {
	m    *model
	crew map[string]*member
	lost func() (map[string]bool, error) // the files that the cluster reports as having lost bytes

	mu    sync.Mutex
	wrong []error            // errors that the model does not explain
	stop  context.CancelFunc // stops everything when something is wrong
	last  map[string]string  // the last error of each kind of operation, for people
}

// found records an error, and ends the schedule.
func (w *work) found(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, err)
	w.stop()
}

func (w *work) failed(op string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[op] = err.Error()
}

// rest waits for up to d, and longer for a client that is gone.
func rest(ctx context.Context, rng *rand.Rand, d time.Duration, err error) {
	wait := time.Duration(rng.Int64N(int64(d)))
	if errors.Is(err, errGone) {
		wait += 300 * time.Millisecond
	}
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// run has all work until ctx ends, and returns when all have ended.
func (w *work) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	rng := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 100+n)) }
	for i := range uint64(2) {
		all.Go(func() { w.write(ctx, rng(i), fmt.Sprintf("/w%d", i), filesAtOnce, largest) })
	}
	all.Go(func() { w.write(ctx, rng(2), memoryPrefix, filesAtOnce, largest) })
	// Small files stay unchanged for long enough to be packed with each other.
	all.Go(func() { w.write(ctx, rng(15), smallDir+"/s", smallAtOnce, small) })
	all.Go(func() { w.patch(ctx, rng(10)) })
	all.Go(func() { w.checkpoint(ctx, rng(20)) })
	all.Go(func() { w.tier(ctx, rng(25)) })
	for i := range uint64(3) {
		all.Go(func() { w.read(ctx, rng(30+i), reader) })
		all.Go(func() { w.read(ctx, rng(40+i), cachedReader) })
	}
	all.Wait()
}

// write makes, replaces and removes files below a prefix of its own, at most atOnce
// at a time.
func (w *work) write(ctx context.Context, rng *rand.Rand, prefix string, atOnce int, largest int64) {
	for n := 0; ctx.Err() == nil; {
		live := w.m.live(false, prefix)
		var f *file
		size := headBytes + rng.Int64N(largest)
		if size%blockBytes < headBytes {
			size += headBytes
		}
		switch d := rng.IntN(10); {
		case len(live) > 0 && (d == 0 || len(live) >= atOnce):
			f, size = live[rng.IntN(len(live))], gone
		case len(live) > 0 && d < 4:
			f = live[rng.IntN(len(live))]
		default:
			f = w.m.add(fmt.Sprintf("%s-%d", prefix, n), false)
			f.memory = prefix == memoryPrefix
			n++
		}
		v := w.m.begin(f, size)
		r := request{Op: opPut, Path: f.path, Tag: f.tag, Version: v, N: size, Scheme: f.scheme(rng), Level: f.level(), Patient: patience}
		if largest == small {
			r.Scheme = moraine.Scheme{} // the directory's policy decides
		}
		if size == gone {
			r = request{Op: opRemove, Path: f.path, Patient: patience}
		}
		a, err := w.crew[writer].ask(r)
		w.m.end(f, v, err == nil, 0, 0, max(size, 0))
		w.m.tookMemory(a.Size)
		if err != nil {
			w.failed(r.Op, err)
		}
		rest(ctx, rng, 400*time.Millisecond, err)
	}
}

// patch overwrites ranges of files in place.
func (w *work) patch(ctx context.Context, rng *rand.Rand) {
	const blocks = patchedSize / blockBytes
	for n := 0; ctx.Err() == nil; {
		live := w.m.live(true, "/p")
		if len(live) < 3 {
			f := w.m.add(fmt.Sprintf("/p-%d", n), true)
			f.memory = n%2 == 1
			n++
			v := w.m.begin(f, patchedSize)
			a, err := w.crew[patcher].ask(request{Op: opPut, Path: f.path, Tag: f.tag, Version: v, N: patchedSize, Scheme: f.scheme(rng), Level: f.level(), Patient: patience})
			w.m.end(f, v, err == nil, 0, blocks, patchedSize)
			w.m.tookMemory(a.Size)
			rest(ctx, rng, 300*time.Millisecond, err)
			continue
		}
		f := live[rng.IntN(len(live))]
		first := rng.Int64N(blocks)
		count := 1 + rng.Int64N(min(blocks-first, 24))
		v := w.m.beginRange(f, first, count)
		_, err := w.crew[patcher].ask(request{Op: opPatch, Path: f.path, Tag: f.tag, Version: v, Off: first * blockBytes, N: count * blockBytes, Level: f.level(), Patient: patience})
		w.m.end(f, v, err == nil, first, count, count*blockBytes)
		if err != nil {
			w.failed(opPatch, err)
		}
		rest(ctx, rng, 250*time.Millisecond, err)
	}
}

// checkpoint saves step after step, and restarts after a failure, as a trainer
// does: from the latest existing one.
func (w *work) checkpoint(ctx context.Context, rng *rand.Rand) {
	for start := uint32(0); ctx.Err() == nil; start++ {
		before := w.m.latest()
		a, err := w.crew[checkpointer].ask(request{Op: opOpenRun, Path: runPath, Version: start, Patient: patience})
		if err != nil {
			w.failed(opOpenRun, err)
			rest(ctx, rng, time.Second, err)
			continue
		}
		parent := step{uint32(a.Size), a.Step}
		if err := w.m.checkStep(before, parent); err != nil {
			w.found(fmt.Errorf("attempt %d goes on: %w", a.Attempt, err))
			return
		}
		for s := (step{a.Attempt, parent.step + 1}); ctx.Err() == nil; s.step++ {
			w.m.beginStep(s)
			_, err := w.crew[checkpointer].ask(request{Op: opSave, Path: runPath, Step: s.step, Patient: patience})
			w.m.endStep(s, err == nil, checkpointBytes())
			if err != nil {
				w.failed(opSave, err)
				rest(ctx, rng, time.Second, err)
				break
			}
			rest(ctx, rng, 2*time.Second, nil)
		}
	}
}

// tier moves files to the bucket and back, during all other operations. That does
// not change their contents, so the model gets no report.
func (w *work) tier(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		var err error
		if f := w.m.any(rng); f != nil {
			r := request{Op: opEvict, Path: f.path, Patient: patience}
			if rng.IntN(4) == 0 {
				r.Op = opStage
			}
			var a reply
			if a, err = w.crew[patcher].ask(r); err != nil {
				w.failed(r.Op, err)
			}
			w.m.mu.Lock()
			w.m.evicted += a.Size
			w.m.mu.Unlock()
		}
		rest(ctx, rng, 500*time.Millisecond, err)
	}
}

// read reads ranges of files, and sometimes the latest checkpoint.
func (w *work) read(ctx context.Context, rng *rand.Rand, by string) {
	for ctx.Err() == nil {
		var err error
		if f := w.m.any(rng); f != nil && rng.IntN(40) > 0 {
			_, err = w.readFile(f, rng, by, readPatience)
		} else {
			err = w.restore(by, readPatience)
		}
		rest(ctx, rng, 80*time.Millisecond, err)
	}
}

// readFile reads a range of a file, or all of it if rng is nil, and compares it
// with the model. there reports whether it has a file at all.
func (w *work) readFile(f *file, rng *rand.Rand, by string, patient time.Duration) (there bool, err error) {
	w.m.mu.Lock()
	size := max(0, f.sizes[len(f.sizes)-1])
	w.m.mu.Unlock()
	r := request{Op: opRead, Path: f.path, Tag: f.tag, N: 64 << 20, Patient: patient}
	if rng != nil && size > 0 {
		r.Off = rng.Int64N(size) / blockBytes * blockBytes
		r.N = blockBytes * (1 + rng.Int64N(1+rng.Int64N(64)))
	}
	before := w.m.expect(f)
	a, err := w.crew[by].ask(r)
	if err != nil {
		w.failed(opRead, err)
		return false, err
	}
	if a.Wrong != "" {
		w.found(fmt.Errorf("wrong bytes served to %s: %s", by, a.Wrong))
		return true, nil
	}
	if err := w.m.check(f, before, seen{missing: a.Missing, size: a.Size, first: r.Off / blockBytes, versions: a.Versions}); err != nil {
		w.found(fmt.Errorf("wrong to %s: %w", by, err))
	}
	return !a.Missing, nil
}

// restore reads the latest checkpoint, and compares it with the model.
func (w *work) restore(by string, patient time.Duration) error {
	before := w.m.latest()
	a, err := w.crew[by].ask(request{Op: opRestore, Path: runPath, Patient: patient})
	if err != nil {
		w.failed(opRestore, err)
		return err
	}
	if a.Wrong != "" {
		w.found(fmt.Errorf("wrong bytes served to %s: %s", by, a.Wrong))
		return nil
	}
	if err := w.m.checkStep(before, step{a.Attempt, a.Step}); err != nil {
		w.found(fmt.Errorf("wrong to %s: %w", by, err))
	}
	return nil
}

// checkAll reads everything acknowledged, whole, after all faults have ended. It
// retries failures until the time is over; then the file is lost.
func (w *work) checkAll(by string, within time.Duration) {
	end := time.Now().Add(within)
	until := func(what string, try func() error) {
		for {
			err := try()
			switch {
			case err == nil:
				return
			case time.Now().After(end):
				w.found(fmt.Errorf("%s cannot be read %v after all faults: %w", what, within, err))
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	for _, f := range w.m.all() {
		until(f.path, func() error {
			_, err := w.readFile(f, nil, by, patience)
			if err != nil && f.memory {
				return w.calledLost(f, err)
			}
			return err
		})
	}
	until("the latest checkpoint", func() error { return w.restore(by, patience) })
	for _, s := range w.m.steps {
		what := fmt.Sprintf("step %d of attempt %d", s.step, s.attempt)
		until(what, func() error {
			a, err := w.crew[by].ask(request{Op: opStep, Path: runPath, Attempt: s.attempt, Step: s.step, Patient: patience})
			if err != nil {
				return err
			}
			switch {
			case a.Wrong != "":
				w.found(fmt.Errorf("wrong bytes served to %s: %s", by, a.Wrong))
			case a.Missing:
				w.found(fmt.Errorf("%s was acknowledged, and is not there", what))
			default:
				w.m.mu.Lock()
				w.m.reads++
				w.m.mu.Unlock()
			}
			return nil
		})
	}
}

// calledLost ignores why a file cannot be read, if the cluster reports that bytes
// which were only in memory are lost.
func (w *work) calledLost(f *file, why error) error {
	names, err := w.lost()
	if err != nil || !names[f.path] {
		return errors.Join(why, err)
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.lost++
	return nil
}

// errors returns the last failure of each operation.
func (w *work) errors() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for op, err := range w.last {
		all = append(all, op+": "+err)
	}
	return strings.Join(all, "; ")
}
