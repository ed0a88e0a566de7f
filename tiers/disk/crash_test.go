package disk_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/bufpool"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// This file drives a device with random operations, stops it at a random call of
// the file system (the power goes, or the process is killed), opens what is left,
// and holds that against a model, several lives long.

// state is what the model says of one chunk: its version, 0 where there is none,
// and the seed of its bytes.
type state struct {
	version moraine.LayoutVersion
	seed    uint64
}

// knowledge is what a client of the device knows of a chunk.
type knowledge struct {
	acked   state
	attempt *state // asked for, not answered
}

// world is a device with its model.
type world struct {
	rng  *rand.Rand
	cut  *rand.Rand // chooses what a power cut leaves
	mem  *vfs.Mem
	drop func(op vfs.Op) bool // syncs to be left out
	full func(op vfs.Op) bool // writes that find the disk full

	writers int // at once

	mu      sync.Mutex // guards what follows
	chunks  map[moraine.ChunkID]knowledge
	lives   int
	calls   int
	stopAt  int
	atSync  bool // stop at the next sync from there on
	dead    bool // the device's process is gone: it changes nothing any more
	after   *vfs.Mem
	known   map[moraine.ChunkID]knowledge // as of the stop
	crashes bool
}

const crashChunks = 12

var errKilled = fmt.Errorf("killed: %w", syscall.EIO)

// rule is that of the next life.
func (w *world) rule() vfs.Rule {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lives++
	life := w.lives
	return func(op vfs.Op) error { return w.judge(life, op) }
}

// judge counts the calls of a life, and at the one chosen stops the device.
// What is left of an earlier life can do nothing.
func (w *world) judge(life int, op vfs.Op) error {
	switch op.Kind {
	case vfs.OpClose, vfs.OpRead, vfs.OpList, vfs.OpStat, vfs.OpUsage, vfs.OpLock:
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lives != life {
		return errKilled
	}
	w.calls++
	syncs := op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir
	if !w.dead && w.stopAt > 0 && w.calls >= w.stopAt && (syncs || !w.atSync) {
		w.dead = true
		w.known = map[moraine.ChunkID]knowledge{}
		for id, k := range w.chunks {
			w.known[id] = k
		}
		w.after = w.mem
		if w.crashes {
			w.after = w.mem.Crash(w.cut)
		}
	}
	switch {
	case w.dead && op.Kind == vfs.OpOpen && op.Flag == vfs.Read:
		return nil
	case w.dead:
		return errKilled
	case w.drop != nil && syncs && w.drop(op):
		return vfs.Drop
	case w.full != nil && w.full(op):
		// Another writer's sync falls into the gap: what was written of the
		// record so far is durable.
		if f, err := w.mem.Open(op.Path, vfs.Read); err == nil {
			_ = f.Sync()
		}
		return syscall.ENOSPC
	}
	return nil
}

// crashConfig has segments so small that they are rolled and removed all the time.
func crashConfig() disk.Config {
	cfg := config("/device")
	cfg.SegmentBytes = 16 * 4096
	return cfg
}

// life opens the device, checks it, and has it work until it is stopped. It
// returns what is wrong.
func (w *world) life(stopAt int, crashes bool) error {
	w.begin(stopAt, crashes)
	d, err := disk.Open(crashConfig(), disk.Deps{FS: vfs.NewFault(w.mem, w.rule()), Random: random(1)})
	if err == nil {
		err = w.check(d)
		for i := 0; err == nil && !w.stopped() && i < 400; i++ {
			if w.writers > 1 {
				err = w.stepTogether(d)
			} else {
				err = w.step(d)
			}
		}
		if closeErr := d.Close(); err == nil {
			err = closeErr
		}
	}
	if !w.stopped() {
		return err // a life that ended by itself, or went wrong
	}
	// What failed because the device was stopped is no fault; what was found
	// wrong before that is.
	var wrong *mismatch
	if errors.As(err, &wrong) {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mem, w.chunks = w.after, w.known
	return nil
}

// begin begins a life that stops at the call named, or by itself where that is
// negative. Goroutines of the life before may still ask its rule; from here on
// they get no answer but that they are dead.
func (w *world) begin(stopAt int, crashes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lives++
	w.stopAt, w.calls, w.dead, w.crashes, w.after = stopAt, 0, false, crashes, nil
}

func (w *world) stopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// mismatch is a device that does not hold what it should.
type mismatch struct{ text string }

func (m *mismatch) Error() string { return m.text }

// step does one random thing.
func (w *world) step(d *disk.Device) error {
	id := moraine.ChunkID{Stripe: moraine.StripeID(1 + w.rng.IntN(crashChunks/2)), Index: uint8(w.rng.IntN(2))}
	known := w.chunks[id]
	switch n := w.rng.IntN(20); {
	case n < 10:
		next := state{version: known.acked.version + 1, seed: w.rng.Uint64()}
		return w.try(id, next, func() error { return put(d, id, next) })
	case n < 16:
		return w.try(id, state{}, func() error {
			return d.Delete(context.Background(), id, known.acked.version+1)
		})
	case n < 18:
		return d.ReclaimNow()
	case n < 19:
		d.FlushIndex()
		return d.Err()
	default:
		return w.checkOne(d, id, known.acked)
	}
}

// stepTogether has several writers change a chunk each, at once, so that records
// are in flight together and share syncs.
func (w *world) stepTogether(d *disk.Device) error {
	if w.rng.IntN(8) == 0 {
		return d.ReclaimNow()
	}
	errs := make([]error, w.writers)
	var wg sync.WaitGroup
	for i, n := range w.rng.Perm(crashChunks)[:w.writers] {
		id := moraine.ChunkID{Stripe: moraine.StripeID(1 + n/2), Index: uint8(n % 2)}
		w.mu.Lock()
		known := w.chunks[id]
		w.mu.Unlock()
		next := state{version: known.acked.version + 1, seed: w.rng.Uint64()}
		do := func() error { return put(d, id, next) }
		if w.rng.IntN(3) == 0 {
			next = state{}
			do = func() error { return d.Delete(context.Background(), id, known.acked.version+1) }
		}
		wg.Go(func() { errs[i] = w.try(id, next, do) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// try carries out an attempt, and notes whether it was answered.
func (w *world) try(id moraine.ChunkID, next state, do func() error) error {
	w.mu.Lock()
	k := w.chunks[id]
	k.attempt = &next
	w.chunks[id] = k
	w.mu.Unlock()
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	if errors.Is(err, moraine.NoSpace) {
		k.attempt = nil // refused, whole
		w.chunks[id] = k
		return nil
	}
	if err == nil {
		w.chunks[id] = knowledge{acked: next}
	}
	return err
}

var crashPool = bufpool.New(bufpool.Config{})

// put puts the chunk that s says. Chunks of one block and of several alternate.
func put(d *disk.Device, id moraine.ChunkID, s state) error {
	b := crashPool.TryGet(chunkLength(s))
	defer b.Release()
	tiertest.Fill(b.Bytes(), s.seed)
	c := tiertest.ChunkOf(id, s.version, b.Bytes())
	return d.Put(context.Background(), c.Header, c.Data, c.Sums)
}

func chunkLength(s state) int { return 1 + int(s.seed%20_000) }

// check holds all chunks against the model: each is as was acknowledged, or as
// was asked for last; and takes what is there as the truth from then on.
func (w *world) check(d *disk.Device) error {
	headers, err := d.List(context.Background(), moraine.ChunkID{}, 1000)
	if err != nil {
		return err
	}
	held := map[moraine.ChunkID]tiers.Header{}
	for _, h := range headers {
		held[h.ID] = h
	}
	for i := range crashChunks {
		id := moraine.ChunkID{Stripe: moraine.StripeID(1 + i/2), Index: uint8(i % 2)}
		k := w.chunks[id]
		is := k.acked
		if k.attempt != nil && held[id].Version == k.attempt.version {
			is = *k.attempt
		}
		if held[id].Version != is.version {
			return &mismatch{fmt.Sprintf("chunk %s is of version %d; acknowledged was %d, asked for %v (%+v)",
				id, held[id].Version, k.acked.version, k.attempt, d.Recovered())}
		}
		if err := w.checkOne(d, id, is); err != nil {
			return err
		}
		w.mu.Lock()
		w.chunks[id] = knowledge{acked: is}
		w.mu.Unlock()
	}
	if u := d.Usage(); u.Chunks != uint64(len(headers)) {
		return &mismatch{fmt.Sprintf("%d chunks counted, %d listed", u.Chunks, len(headers))}
	}
	return nil
}

func (w *world) checkOne(d *disk.Device, id moraine.ChunkID, is state) error {
	got := make([]byte, chunkLength(is))
	h, err := d.Get(context.Background(), id, 0, got)
	if err != nil && w.stopped() {
		return err
	}
	if is.version == 0 {
		if !errors.Is(err, moraine.NotFound) {
			return &mismatch{fmt.Sprintf("chunk %s should be missing: %v", id, err)}
		}
		return nil
	}
	if err != nil {
		return &mismatch{fmt.Sprintf("chunk %s of version %d: %v", id, is.version, err)}
	}
	want := make([]byte, len(got))
	tiertest.Fill(want, is.seed)
	if h.Version != is.version || crc.Sum(got) != crc.Sum(want) {
		return &mismatch{fmt.Sprintf("chunk %s has version %d and other bytes than were put as %d", id, h.Version, is.version)}
	}
	return nil
}

// verify opens what is left twice, the second time without its index: what the
// segments say must be the same.
func (w *world) verify() error {
	w.begin(-1, false)
	for _, lose := range []bool{false, true} {
		if lose {
			if err := w.mem.RemoveAll("/device/index"); err != nil {
				return err
			}
		}
		d, err := disk.Open(crashConfig(), disk.Deps{FS: vfs.NewFault(w.mem, w.rule())})
		if err != nil {
			return &mismatch{fmt.Sprintf("open (index lost: %v): %v", lose, err)}
		}
		err = w.check(d)
		if err != nil {
			err = fmt.Errorf("index lost %v: %w", lose, err)
		}
		if closeErr := d.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lives runs one seed: several lives, each ended at a random call.
func lives(seed uint64, drop, full func(vfs.Op) bool) error {
	return livesOf(seed, 1, drop, full)
}

func livesOf(seed uint64, writers int, drop, full func(vfs.Op) bool) error {
	w := &world{writers: writers, rng: rand.New(rand.NewPCG(seed, 77)), cut: rand.New(rand.NewPCG(seed, 78)),
		mem: vfs.NewMem(seed), drop: drop, full: full, chunks: map[moraine.ChunkID]knowledge{}}
	if _, err := disk.Format(w.mem, "/device", tiertest.Cluster, random(seed)); err != nil {
		return err
	}
	for life := range 4 {
		// What stops at a sync leaves the most that is not kept, and that tells
		// most where the next life ends soon after it has read it.
		crashes, stopAt := w.rng.IntN(5) > 1, 1+w.rng.IntN(60)
		if w.rng.IntN(2) == 0 {
			stopAt = 1 + w.rng.IntN(300)
		}
		w.atSync = w.rng.IntN(2) == 0
		if err := w.life(stopAt, crashes); err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
		switch w.rng.IntN(4) {
		case 0:
			if err := w.mem.RemoveAll("/device/index"); err != nil {
				return err
			}
		case 1:
			if err := w.verify(); err != nil {
				return fmt.Errorf("after life %d: %w", life, err)
			}
		}
	}
	return w.verify()
}

func TestCrashAtAnyCallLosesNothing(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 20, 360) {
		if err := lives(seed, nil, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestCrashAmongManyWriters is the same with five writers at once, some of whom
// find the disk full.
func TestCrashAmongManyWriters(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 12, 240) {
		full := fullAtTimes(seed)
		if seed%2 == 0 {
			full = nil
		}
		if err := livesOf(seed, 5, nil, full); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// fullAtTimes makes some writes of segments fail for want of space.
func fullAtTimes(seed uint64) func(vfs.Op) bool {
	rng := rand.New(rand.NewPCG(seed, 5))
	return func(op vfs.Op) bool {
		return op.Kind == vfs.OpWrite && op.Off > 0 && op.Len > 4096 && strings.HasSuffix(op.Path, ".seg") && rng.IntN(5) == 0
	}
}

func TestCrashOnADiskFullAtTimesLosesNothing(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 10, 180) {
		if err := lives(seed, nil, fullAtTimes(seed)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// site names the statement of package disk that a call of the file system comes
// from, "" where pebble makes it.
func site() string {
	pcs := make([]uintptr, 40)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, "disk.index") {
			return "" // pebble's, through its file system
		}
		if strings.Contains(f.Function, "moraine/tiers/disk.") {
			name := f.Function[strings.LastIndex(f.Function, "disk.")+5:]
			shared := strings.HasPrefix(name, "(*Device).syncSegment") || strings.HasPrefix(name, "(*syncGroup)")
			if !shared {
				return fmt.Sprintf("%s:%d", name, f.Line)
			}
		}
		if !more {
			return ""
		}
	}
}

// TestEverySyncIsNeeded leaves out the syncs of one statement at a time, and
// wants the crash test to find out: else it has no teeth, or the sync no use.
func TestEverySyncIsNeeded(t *testing.T) {
	sites := map[string]bool{}
	note := func(vfs.Op) bool {
		if s := site(); s != "" {
			sites[s] = true
		}
		return false
	}
	for seed := range uint64(20) {
		if err := lives(seed, note, fullAtTimes(seed)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if len(sites) < 6 {
		t.Fatalf("only %d statements sync: %v", len(sites), sites)
	}
	for s := range sites {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			seed, err := findOut(s)
			if err == nil {
				t.Fatal("nobody misses it")
			}
			t.Logf("seed %d: %v", seed, err)
		})
	}
}

// findOut runs seeds without the syncs of a site until one goes wrong: first those that have
// found out what takes hundreds of others.
func findOut(missing string) (uint64, error) {
	seeds := []uint64{660, 45}
	for seed := range uint64(2000) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		drop := func(vfs.Op) bool { return site() == missing }
		if err := lives(seed, drop, fullAtTimes(seed)); err != nil {
			return seed, err
		}
	}
	return 0, nil
}
