package raftstore

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
)

// snapReader reads a snapshot of the database.
type snapReader struct{ snap *pebble.Snapshot }

var _ kvtx.Reader = snapReader{}

// Get implements kvtx.Reader. The slice does not change.
func (s snapReader) Get(key []byte) ([]byte, bool, error) {
	value, _, ok, err := readValue(s.snap, key)
	return value, ok, err
}

// Scan implements kvtx.Reader.
func (s snapReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return scan(s.snap, lo, hi, fn)
}

// sharedView is the state after an entry, which reads share: a snapshot of the database, and the
// layers above it.
type sharedView struct {
	snap    *pebble.Snapshot
	layers  *layers
	applied uint64
	refs    int // reads, plus one while it is the current view
}

// viewReader reads a view through the records.
type viewReader struct {
	*sharedView
	records *records
	fatal   *fatal
}

var _ kvtx.Reader = viewReader{}

// Get implements kvtx.Reader.
func (v viewReader) Get(key []byte) ([]byte, bool, error) {
	value, ok, err := v.get(key)
	return value, ok, v.endAt(err)
}

func (v viewReader) get(key []byte) ([]byte, bool, error) {
	if c, ok := v.look(string(key)); ok {
		return c.value, c.there, c.check(key)
	}
	if value, ok, err := v.records.get(key, v.applied); ok || err != nil {
		return value, ok, err
	}
	value, sum, ok, err := readValue(v.snap, key)
	if ok && err == nil && bytes.Compare(key, reserved) < 0 {
		v.records.add(key, value, sum, v.applied)
	}
	return value, ok, err
}

// endAt ends the node if err says that a value is damaged. Nobody knows what else is wrong in its
// memory, and the other servers have the value. The caller's request is for them.
func (v viewReader) endAt(err error) error {
	if moraine.KindOf(err) != moraine.Corrupt || err == nil {
		return err
	}
	v.fatal.set(err)
	return &moraine.Error{Op: "raftstore.View", Kind: moraine.Unavailable, Err: errors.New("this server stops: its state is damaged")}
}

func (v viewReader) look(key string) (cell, bool) { return v.layers.at(key, v.applied) }

// Scan implements kvtx.Reader.
func (v viewReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	from, to := bounds(lo, hi)
	return v.endAt(scanOver(v.snap, lo, hi, v.layers.keysIn(nil, from, to, v.applied), v.look, fn))
}

// read calls fn with a consistent state that has at least every commit that returned before the
// call.
func (s *stateDB) read(fn func(r viewReader, applied uint64) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return errClosed
	}
	v := s.acquireView()
	err := fn(viewReader{v, s.records, s.fatal}, v.applied)
	return errors.Join(err, s.releaseView(v))
}

func (s *stateDB) acquireView() *sharedView {
	s.viewMu.Lock()
	defer s.viewMu.Unlock()
	if s.view == nil {
		s.view = &sharedView{snap: s.db.NewSnapshot(), layers: s.layers, applied: s.reached, refs: 1}
	}
	s.view.refs++
	return s.view
}

func (s *stateDB) releaseView(v *sharedView) error {
	s.viewMu.Lock()
	defer s.viewMu.Unlock()
	return v.unref()
}

// renew lets change alter the basis of the next view, and makes the next read create that view.
func (s *stateDB) renew(change func()) error {
	s.viewMu.Lock()
	defer s.viewMu.Unlock()
	change()
	v := s.view
	if v == nil {
		return nil
	}
	s.view = nil
	return v.unref()
}

func (v *sharedView) unref() error {
	if v.refs--; v.refs > 0 {
		return nil
	}
	return v.snap.Close()
}
