package localstore_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// life is a store whose power is cut repeatedly, and the answers that it gave.
type life struct {
	rng   *rand.Rand
	disk  *vfs.Mem
	skip  localstore.SyncPoint
	store *localstore.Store

	objects map[string][]byte       // acknowledged; nil: deleted
	uploads map[string]*begunUpload // acknowledged and not ended, by id
	ended   map[string]string       // uploads whose end was acknowledged, with their keys
	changes int
	lost    []string
}

type begunUpload struct {
	key   string
	parts map[int][]byte
}

// none leaves out no sync.
const none = localstore.SyncPoint(-1)

func clock() time.Time { return time.Unix(1_700_000_000, 0) }

func newLife(seed uint64, skip localstore.SyncPoint) *life {
	return &life{rng: rand.New(rand.NewPCG(seed, 1)), disk: vfs.NewMem(seed), skip: skip,
		objects: map[string][]byte{}, uploads: map[string]*begunUpload{}, ended: map[string]string{}}
}

func (l *life) open() error {
	var err error
	l.store, err = localstore.OpenWithout(l.disk, "data/store", localstore.Options{Now: clock}, l.skip)
	return err
}

func (l *life) bytes() []byte {
	b := make([]byte, l.rng.IntN(20_000))
	for i := range b {
		b[i] = byte(l.rng.Uint32())
	}
	return b
}

func (l *life) key() string { return fmt.Sprintf("dir/%d", l.rng.IntN(8)) }

// anUpload returns an open upload; false if there is none.
func (l *life) anUpload() (string, *begunUpload, bool) {
	ids := make([]string, 0, len(l.uploads))
	for id := range l.uploads {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return "", nil, false
	}
	id := ids[l.rng.IntN(len(ids))]
	return id, l.uploads[id], true
}

// change makes one change. The store acknowledges it by returning nil.
func (l *life) change() error {
	l.changes++
	switch l.rng.IntN(7) {
	case 0, 1:
		key, data := l.key(), l.bytes()
		_, err := l.store.Put(key, localstore.Record{}, bytes.NewReader(data), nil, localstore.Condition{})
		l.objects[key] = data
		return err
	case 2:
		key := l.key()
		l.objects[key] = nil
		return l.store.Delete(key, "")
	case 3:
		key := l.key()
		id, err := l.store.NewUpload(key, localstore.Record{})
		l.uploads[id] = &begunUpload{key, map[int][]byte{}}
		return err
	case 4, 5:
		id, u, ok := l.anUpload()
		if !ok {
			return nil
		}
		number, data := 1+l.rng.IntN(3), l.bytes()
		_, err := l.store.PutPart(u.key, id, number, bytes.NewReader(data), nil)
		u.parts[number] = data
		return err
	}
	id, u, ok := l.anUpload()
	if !ok {
		return nil
	}
	delete(l.uploads, id)
	l.ended[id] = u.key
	if len(u.parts) == 0 {
		return l.store.Abort(u.key, id)
	}
	parts, err := l.store.Parts(u.key, id)
	if err != nil {
		return err
	}
	var whole []byte
	for _, p := range parts {
		whole = append(whole, u.parts[p.Number]...)
	}
	_, err = l.store.Complete(u.key, id, parts, nil, localstore.Condition{})
	l.objects[u.key] = whole
	return err
}

// cut cuts the power and opens the store on what is left.
func (l *life) cut() error {
	l.disk = l.disk.Crash(l.rng)
	return l.open()
}

func (l *life) missing(format string, args ...any) {
	l.lost = append(l.lost, fmt.Sprintf(format, args...))
}

// look compares the store with its acknowledgements.
func (l *life) look() {
	for key, want := range l.objects {
		r, f, err := l.store.Get(key)
		switch {
		case want == nil && err == nil:
			_ = f.Close()
			l.missing("%s was deleted and is there", key)
			continue
		case want == nil:
			continue
		case err != nil:
			l.missing("%s: %v", key, err)
			continue
		}
		got := make([]byte, r.Size)
		_, err = f.ReadAt(got, 0)
		if err != nil && err != io.EOF || !bytes.Equal(got, want) || r.CRC != crc.Sum(want) {
			l.missing("%s has %d other bytes, want %d (%v)", key, len(got), len(want), err)
		}
		_ = f.Close()
	}
	for id, u := range l.uploads {
		parts, err := l.store.Parts(u.key, id)
		if err != nil || len(parts) != len(u.parts) {
			l.missing("upload of %s has %d parts, want %d (%v)", u.key, len(parts), len(u.parts), err)
			continue
		}
		for _, p := range parts {
			if p.Record.CRC != crc.Sum(u.parts[p.Number]) {
				l.missing("part %d of %s is another", p.Number, u.key)
			}
		}
	}
	for id, key := range l.ended {
		if _, err := l.store.Parts(key, id); err == nil {
			l.missing("the upload of %s ended and is there", key)
		}
	}
}

// run makes changes and cuts the power, until an acknowledged change is lost.
func (l *life) run(cuts int) error {
	if err := l.open(); err != nil {
		return err
	}
	for range cuts {
		for range 1 + l.rng.IntN(20) {
			if err := l.change(); err != nil {
				return err
			}
		}
		if err := l.cut(); err != nil {
			return err
		}
		if l.look(); len(l.lost) > 0 {
			return nil
		}
	}
	return nil
}

// Every acknowledged change survives any power loss.
func TestPowerCutsLoseNoObject(t *testing.T) {
	changes, cuts := 0, testseed.Of(8, 60)
	for seed := range uint64(60) {
		l := newLife(seed, none)
		require.NoError(t, l.run(cuts), "seed %d", seed)
		require.Empty(t, l.lost, "seed %d", seed)
		changes += l.changes
	}
	t.Logf("%d cuts, %d changes, 0 lost", 60*cuts, changes)
}

// Each sync is needed: without it, some power loss loses an acknowledged change.
func TestEverySyncIsNeeded(t *testing.T) {
	for p := range localstore.SyncPoints {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			for seed := range uint64(200) {
				l := newLife(seed, p)
				if err := l.run(8); err != nil || len(l.lost) > 0 {
					t.Logf("seed %d: %v %v", seed, err, l.lost)
					return
				}
			}
			t.Error("nothing was lost without it")
		})
	}
}
