package raftstore

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/morainefs/moraine/metadata/state"
)

// snapReader reads a snapshot of the database.
type snapReader struct{ snap *pebble.Snapshot }

var _ state.Reader = snapReader{}

// Get implements state.Reader. The slice stays as it is.
func (s snapReader) Get(key []byte) ([]byte, bool, error) {
	value, closer, err := s.snap.Get(key)
	if err == pebble.ErrNotFound {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	out := bytes.Clone(value)
	return out, true, closer.Close()
}

// Scan implements state.Reader.
func (s snapReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	return scan(s.snap, lo, hi, fn)
}

// sharedView is the state as of an entry, which reads share: a snapshot of the
// database, and the layers above it.
type sharedView struct {
	snap    *pebble.Snapshot
	layers  *layers
	applied uint64
	refs    int // reads, and one while it is the current one
}

// viewReader reads a view, through the records.
type viewReader struct {
	*sharedView
	records *records
}

var _ state.Reader = viewReader{}

// Get implements state.Reader.
func (v viewReader) Get(key []byte) ([]byte, bool, error) {
	if c, ok := v.look(string(key)); ok {
		return c.value, c.there, nil
	}
	if value, ok := v.records.get(key, v.applied); ok {
		return value, true, nil
	}
	value, ok, err := snapReader{v.snap}.Get(key)
	if ok && err == nil && bytes.Compare(key, reserved) < 0 {
		v.records.add(key, value, v.applied)
	}
	return value, ok, err
}

func (v viewReader) look(key string) (cell, bool) { return v.layers.at(key, v.applied) }

// Scan implements state.Reader.
func (v viewReader) Scan(lo, hi []byte, fn func(key, value []byte) bool) error {
	from, to := bounds(lo, hi)
	return scanOver(v.snap, lo, hi, v.layers.keysIn(nil, from, to, v.applied), v.look, fn)
}

// read calls fn with a consistent state that holds at least every commit that
// returned before the call.
func (s *stateDB) read(fn func(r viewReader, applied uint64) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.db == nil {
		return errClosed
	}
	v := s.acquireView()
	err := fn(viewReader{v, s.records}, v.applied)
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

// renew has change alter what the next view is of, and makes the next read take it.
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
