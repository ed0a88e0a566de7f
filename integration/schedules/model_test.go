package schedules_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// model is everything begun and acknowledged, for every file and every checkpoint,
// and so what a reader may see. It depends only on the reports it gets.
type model struct {
	seed uint64

	mu    sync.Mutex
	files []*file

	reads, readBytes int64 // that were compared with it
	acked            int64 // bytes
	inMemory         int64 // of them, whole files that were only in memory then
	lost             int   // files whose bytes were only in memory, and that the cluster reports as lost
	evicted          int64 // files
	failed           int64 // operations that ended with an error, or with their client
	steps            []step
	begun            step // the latest
	lastAcked        step // a restart continues from this one, at least
}

// file is the history of one path. It has one writer, so its versions have an
// order. After an operation with an unknown outcome it is never written again: the
// operation may still take effect.
type file struct {
	path string
	tag  uint64
	// inPlace says that ranges of it are overwritten. Otherwise it is replaced
	// whole, and a reader sees one version of all of it.
	inPlace bool
	// memory says that it is acknowledged at level memory: its bytes may be lost
	// with the hosts that have them, and must then be reported by name.
	memory  bool
	retired bool
	// sizes of each version, from 1 on; gone for one that removed the file. Version
	// 0 means that it was never made.
	sizes []int64
	floor uint32 // the earliest version that a reader may still see
	// For a file in place, the same for each block.
	floors, ceilings []uint32
}

const gone = -1

// step is one checkpoint.
type step struct {
	attempt uint32
	step    uint64
}

func (s step) less(o step) bool {
	return s.attempt < o.attempt || s.attempt == o.attempt && s.step < o.step
}

// live returns the files that may be written: they exist, and have no operation
// with an unknown outcome.
func (m *model) live(inPlace bool, prefix string) (files []*file) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.files {
		if !f.retired && f.inPlace == inPlace && f.floor > 0 && f.sizes[f.floor] != gone && len(f.path) > len(prefix) && f.path[:len(prefix)] == prefix {
			files = append(files, f)
		}
	}
	return files
}

// all returns every file.
func (m *model) all() []*file {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.files)
}

// any picks a file.
func (m *model) any(rng *rand.Rand) *file {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.files) == 0 {
		return nil
	}
	return m.files[rng.IntN(len(m.files))]
}

// add makes the record of a new file.
func (m *model) add(path string, inPlace bool) *file {
	f := &file{path: path, tag: tagOf(m.seed, path), inPlace: inPlace, sizes: []int64{gone}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, f)
	return f
}

// begin records that a whole version will be written, and returns its number; a
// size of gone means that the file will be removed.
func (m *model) begin(f *file, size int64) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.sizes = append(f.sizes, size)
	v := uint32(len(f.sizes) - 1)
	if f.inPlace {
		n := (size + blockBytes - 1) / blockBytes
		f.floors, f.ceilings = make([]uint32, n), make([]uint32, n)
		for i := range f.ceilings {
			f.ceilings[i] = v
		}
	}
	return v
}

// beginRange records that blocks of a file in place will be overwritten.
func (m *model) beginRange(f *file, first, n int64) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.sizes = append(f.sizes, f.sizes[len(f.sizes)-1])
	v := uint32(len(f.sizes) - 1)
	for i := first; i < first+n; i++ {
		f.ceilings[i] = v
	}
	return v
}

// end records how an operation on a file ended: acknowledged, or unknown. first and
// n are the blocks of a file in place, bytes the acknowledged bytes.
func (m *model) end(f *file, v uint32, acked bool, first, n, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !acked {
		f.retired = true
		m.failed++
		return
	}
	m.acked += bytes
	f.floor = v
	for i := first; f.inPlace && i < first+n; i++ {
		f.floors[i] = v
	}
}

// tookMemory records that n files were acknowledged from memory.
func (m *model) tookMemory(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inMemory += n
}

// seen is a reader's result for a range of a file.
type seen struct {
	missing  bool
	size     int64
	first    int64
	versions []uint32 // checksums of its blocks
}

// expectation is the state behind which a read that begins now must not be.
type expectation struct {
	floor  uint32
	floors []uint32
}

func (m *model) expect(f *file) expectation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return expectation{f.floor, slices.Clone(f.floors)}
}

// check compares a read with the model, as it was when the read began and as it is
// now. No later read may be behind what it saw.
func (m *model) check(f *file, before expectation, s seen) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	m.readBytes += int64(len(s.versions)) * blockBytes
	last := uint32(len(f.sizes) - 1)
	if s.missing {
		for v := before.floor; v <= last; v++ {
			if f.sizes[v] == gone {
				return nil
			}
		}
		return fmt.Errorf("%s is not there: version %d was acknowledged before, and %d is the last that was begun", f.path, before.floor, last)
	}
	if f.inPlace {
		return f.checkRange(before, s)
	}
	return f.checkWhole(before, s, last)
}

func (f *file) checkWhole(before expectation, s seen, last uint32) error {
	if len(s.versions) == 0 { // of another size than the one to read
		for v := before.floor; v <= last; v++ {
			if f.sizes[v] == s.size {
				return nil
			}
		}
		return fmt.Errorf("%s has %d bytes: no version from %d to %d has", f.path, s.size, before.floor, last)
	}
	v := s.versions[0]
	for i, w := range s.versions {
		if w != v {
			return fmt.Errorf("%s is torn: block %d is of version %d, block %d of version %d", f.path, s.first, v, s.first+int64(i), w)
		}
	}
	if v < before.floor || v > last {
		return fmt.Errorf("%s is of version %d: %d was acknowledged or seen before, and %d is the last that was begun", f.path, v, before.floor, last)
	}
	if f.sizes[v] != s.size {
		return fmt.Errorf("%s is of version %d, and has %d bytes, not %d", f.path, v, s.size, f.sizes[v])
	}
	f.floor = max(f.floor, v)
	return nil
}

func (f *file) checkRange(before expectation, s seen) error {
	if len(before.floors) == 0 {
		before.floors = make([]uint32, len(f.ceilings)) // the read began before the file
	}
	if s.size != f.sizes[1] {
		return fmt.Errorf("%s has %d bytes, not %d", f.path, s.size, f.sizes[1])
	}
	for i, v := range s.versions {
		b := s.first + int64(i)
		if v < max(before.floors[b], 1) || v > f.ceilings[b] {
			return fmt.Errorf("%s: block %d is of version %d: %d was acknowledged or seen before, and %d is the last that was begun", f.path, b, v, before.floors[b], f.ceilings[b])
		}
		f.floors[b] = max(f.floors[b], v)
	}
	f.floor = max(f.floor, 1)
	return nil
}

// beginStep records that a step will be saved, endStep how that ended.
func (m *model) beginStep(s step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun = s
}

func (m *model) endStep(s step, acked bool, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !acked {
		m.failed++
		return
	}
	m.acked += bytes
	m.lastAcked = s
	m.steps = append(m.steps, s)
}

func (m *model) latest() step {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastAcked
}

// checkStep compares a restored step with the model: before is the latest that was
// acknowledged when the restore began. The zero step means that there was none.
func (m *model) checkStep(before, got step) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if got.less(before) || m.begun.less(got) {
		return fmt.Errorf("the latest checkpoint is %+v: %+v was acknowledged before, and %+v is the last that was begun", got, before, m.begun)
	}
	return nil
}

// The model accepts exactly what may be seen.
func TestModel(t *testing.T) {
	m := &model{seed: 1}
	whole := m.add("/w", false)
	wrong := func(what string, f *file, before expectation, s seen) {
		t.Helper()
		if m.check(f, before, s) == nil {
			t.Errorf("%s passes", what)
		}
	}
	right := func(what string, f *file, before expectation, s seen) {
		t.Helper()
		if err := m.check(f, before, s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	right("a file that nobody made", whole, m.expect(whole), seen{missing: true})
	v := m.begin(whole, 2*blockBytes)
	early := m.expect(whole)
	right("one on its way", whole, early, seen{size: 2 * blockBytes, versions: []uint32{1, 1}})
	wrong("one that was seen, and is gone", whole, m.expect(whole), seen{missing: true})
	m.end(whole, v, true, 0, 0, 2*blockBytes)
	wrong("a block of no version", whole, early, seen{size: 2 * blockBytes, versions: []uint32{1, 0}})
	v = m.begin(whole, blockBytes)
	between := m.expect(whole)
	m.end(whole, v, true, 0, 0, blockBytes)
	right("the one before, by a read that began before", whole, between, seen{size: 2 * blockBytes, versions: []uint32{1}})
	wrong("the one before, by a read that began after", whole, m.expect(whole), seen{size: 2 * blockBytes, versions: []uint32{1}})
	wrong("the size of another version", whole, m.expect(whole), seen{size: 2 * blockBytes, versions: []uint32{2}})
	m.end(whole, m.begin(whole, gone), true, 0, 0, 0)
	right("one that was removed", whole, m.expect(whole), seen{missing: true})
	wrong("one that was removed, and is there", whole, m.expect(whole), seen{size: blockBytes, versions: []uint32{2}})

	ranges := m.add("/r", true)
	m.end(ranges, m.begin(ranges, 4*blockBytes), true, 0, 4, 0)
	v = m.beginRange(ranges, 1, 2)
	before := m.expect(ranges)
	right("half of a range on its way", ranges, before, seen{size: 4 * blockBytes, versions: []uint32{1, 2, 1, 1}})
	wrong("a block that was seen is gone", ranges, m.expect(ranges), seen{size: 4 * blockBytes, versions: []uint32{1, 1, 1, 1}})
	wrong("a block that nobody wrote", ranges, before, seen{size: 4 * blockBytes, versions: []uint32{2, 2, 2, 1}})
	m.end(ranges, v, false, 1, 2, 0)
	if len(m.live(true, "/")) != 0 {
		t.Error("a file of which nobody knows is written on")
	}

	m.beginStep(step{1, 1})
	if m.checkStep(step{}, step{}) != nil || m.checkStep(step{}, step{1, 1}) != nil || m.checkStep(step{}, step{1, 2}) == nil {
		t.Error("a step on its way")
	}
	m.endStep(step{1, 1}, true, 1)
	if m.checkStep(m.latest(), step{}) == nil {
		t.Error("a step that was acknowledged and is gone passes")
	}
}

// A block is known by its bytes. One with another bit, or another block, is not
// mistaken for it.
func TestContent(t *testing.T) {
	tag := tagOf(1, "/a")
	p := make([]byte, 3*blockBytes+headBytes)
	fill(p, tag, 7, 2)
	versions, err := versionsOf(p, tag, 2)
	if err != nil || !slices.Equal(versions, []uint32{7, 7, 7, 7}) {
		t.Fatal(versions, err)
	}
	if _, err := versionsOf(p, tag, 3); err == nil {
		t.Error("blocks of another place pass")
	}
	if _, err := versionsOf(p, tagOf(1, "/b"), 2); err == nil {
		t.Error("blocks of another file pass")
	}
	if _, err := versionsOf(make([]byte, blockBytes), tag, 0); err == nil {
		t.Error("zeros pass")
	}
	for range 100 {
		at := rand.IntN(len(p))
		p[at] ^= 1 << rand.IntN(8)
		if v, err := versionsOf(p, tag, 2); err == nil && slices.Equal(v, []uint32{7, 7, 7, 7}) {
			t.Fatalf("a bit of byte %d differs, and passes", at)
		}
		fill(p, tag, 7, 2)
	}
}
