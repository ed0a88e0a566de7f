// Package objecttest is a bucket in memory, for tests on a fake clock. It also has
// the suite that tests this bucket and the real one against the same contract.
// Package s3test has a real server.
//
// One path through it: a test calls Run with a function that opens an empty Store.
// Put uploads an object in parts, and the suite reads it back and compares.
package objecttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
)

// Store is object.Store: *object.Bucket and *Memory implement it.
type Store = object.Store

var _, _ Store = (*object.Bucket)(nil), (*Memory)(nil)

// Memory is a bucket in memory, for tests under a fake clock: it never waits.
type Memory struct {
	mu      sync.Mutex // guards the fields below
	objects map[string]versions
	uploads map[string]*upload
	next    int
	hook    Hook
	traits  object.Traits
	flip    bool // the next completion flips one stored bit
}

type stored struct {
	data    []byte
	etag    string
	meta    map[string]string
	version string // of a versioned bucket
	marker  bool   // a delete marker
	damaged bool   // the store cannot read its record
}

// versions are the current and earlier objects of a key; the last is current. A
// bucket without versions has one at most.
type versions []stored

// current returns the object at the key; false: none.
func (v versions) current() (stored, bool) {
	if len(v) == 0 || v[len(v)-1].marker {
		return stored{}, false
	}
	return v[len(v)-1], true
}

type upload struct {
	key   string
	meta  map[string]string
	parts map[int]memPart
}

type memPart struct {
	data []byte
	etag string
}

// Hook sees each request before it is carried out. It may fail the request. Or it
// returns a function that gets the request's error and may replace it. It runs
// outside of the bucket's lock and may wait.
type Hook func(ctx context.Context, op, key string) (after func(error) error, err error)

// NewMemory makes an empty bucket.
func NewMemory() *Memory {
	return &Memory{objects: map[string]versions{}, uploads: map[string]*upload{},
		traits: object.Traits{WholeCRC: true, IfNoneMatch: true, IfMatch: true, IfMatchDelete: true}}
}

// Support limits the bucket to the features in t. Without WholeCRC it neither
// reports nor verifies CRCs.
func (m *Memory) Support(t object.Traits) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.traits = t
}

// FlipNext makes the next completion, or copy, flip one stored bit without an
// error.
func (m *Memory) FlipNext() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flip = true
}

// Traits and Known implement Store.
func (m *Memory) Traits(context.Context) (object.Traits, error) {
	t, _ := m.Known()
	return t, nil
}

// Known implements Store.
func (m *Memory) Known() (object.Traits, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.traits, true
}

// URL implements Store.
func (m *Memory) URL() string { return "s3://memory/tier" }

// SetHook sets the hook for each request; nil removes it.
func (m *Memory) SetHook(hook Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

// Name and Prefix are the same for every Memory.
func (m *Memory) Name() string   { return "memory" }
func (m *Memory) Prefix() string { return "tier" }

// Keys returns all keys, in order.
func (m *Memory) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := []string{}
	for key, v := range m.objects {
		if _, there := v.current(); there {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Versions returns how many versions a key has, delete markers included.
func (m *Memory) Versions(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.objects[key])
}

// Remove deletes the object at a key, as a foreign program does.
func (m *Memory) Remove(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(key)
}

// put sets the bytes of a key; the caller holds mu.
func (m *Memory) put(key string, o stored) stored {
	if !m.traits.Versioned {
		m.objects[key] = versions{o}
		return o
	}
	m.next++
	o.version = fmt.Sprintf("version-%d", m.next)
	m.objects[key] = append(m.objects[key], o)
	return o
}

// remove removes the object at a key; the caller holds mu.
func (m *Memory) remove(key string) {
	if m.traits.Versioned {
		m.put(key, stored{marker: true})
		return
	}
	delete(m.objects, key)
}

// Open returns how many uploads are unfinished.
func (m *Memory) Open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.uploads)
}

// Bytes returns the bytes at a key, or nil if there are none.
func (m *Memory) Bytes(key string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, _ := m.objects[key].current()
	return slices.Clone(o.data)
}

// Spoil changes a byte at a key, as a broken store does.
func (m *Memory) Spoil(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.objects[key]
	o := &v[len(v)-1]
	o.data = slices.Clone(o.data)
	o.data[len(o.data)/2] ^= 1
}

// Damage damages the record of the object at a key, so that the store cannot read it.
func (m *Memory) Damage(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.objects[key]
	v[len(v)-1].damaged = true
}

// Put writes a key, as a foreign program does.
func (m *Memory) Put(key string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	m.put(key, stored{data: slices.Clone(data), etag: fmt.Sprintf("foreign-%d", m.next)})
}

// Take rewrites the bytes at a key with the same ETag, as a foreign program with
// the same bytes does. meta is the new user metadata.
func (m *Memory) Take(key string, meta map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, _ := m.objects[key].current()
	o.meta = maps.Clone(meta)
	m.put(key, o)
}

// Failure is an error as package object makes them.
func Failure(kind moraine.Kind, refused bool) error {
	return object.MakeError(kind, refused, errors.New("injected failure"))
}

func (m *Memory) do(ctx context.Context, op, key string, fn func() error) error {
	if err := object.CheckFence(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	var after func(error) error
	if hook != nil {
		var err error
		if after, err = hook(ctx, op, key); err != nil {
			return err
		}
	}
	m.mu.Lock()
	err := fn()
	m.mu.Unlock()
	if after != nil {
		err = after(err)
	}
	return err
}

func missing(what string) error {
	return object.MakeError(moraine.NotFound, true, fmt.Errorf("no such %s", what))
}

// find returns the object that r names.
func (m *Memory) find(r object.Ref) (stored, error) {
	o, ok := m.objects[r.Key].current()
	if r.Version != "" {
		i := slices.IndexFunc(m.objects[r.Key], func(o stored) bool { return o.version == r.Version && !o.marker })
		if ok = i >= 0; ok {
			o = m.objects[r.Key][i]
		}
	}
	switch {
	case !ok:
		return o, missing("key")
	case o.damaged:
		return o, object.MakeError(moraine.Corrupt, true, errors.New("the record is damaged"))
	case r.ETag != "" && r.ETag != o.etag:
		return o, object.MakeError(moraine.Conflict, true, fmt.Errorf("key has ETag %s", o.etag))
	}
	return o, nil
}

// info is the bucket's description of an object.
func (m *Memory) info(key string, o stored) object.Info {
	i := object.Info{Ref: object.Ref{Key: key, Version: o.version, ETag: o.etag}, Size: int64(len(o.data)), Meta: maps.Clone(o.meta)}
	if m.traits.WholeCRC {
		i.CRC, i.HasCRC = crc.Sum(o.data), true
	}
	return i
}

// Head implements Store.
func (m *Memory) Head(ctx context.Context, r object.Ref) (info object.Info, err error) {
	err = m.do(ctx, "head", r.Key, func() error {
		o, err := m.find(r)
		if err == nil {
			info = m.info(r.Key, o)
		}
		return err
	})
	return info, err
}

// Get implements Store.
func (m *Memory) Get(ctx context.Context, r object.Ref, off int64, dst []byte) error {
	return m.do(ctx, "get", r.Key, func() error {
		o, err := m.find(r)
		if err != nil {
			return err
		}
		if off < 0 || off+int64(len(dst)) > int64(len(o.data)) {
			return object.MakeError(moraine.Conflict, true, errors.New("range is past the end of the object"))
		}
		copy(dst, o.data[off:])
		return nil
	})
}

// Delete implements Store.
func (m *Memory) Delete(ctx context.Context, r object.Ref) error {
	return m.do(ctx, "delete", r.Key, func() error {
		have, there := m.objects[r.Key].current()
		switch {
		case r.Version != "":
			m.objects[r.Key] = slices.DeleteFunc(m.objects[r.Key], func(o stored) bool { return o.version == r.Version })
		case !there:
		case r.ETag != "" && have.etag != r.ETag && m.traits.IfMatchDelete:
			return object.MakeError(moraine.Conflict, true, fmt.Errorf("key has ETag %q", have.etag))
		default:
			m.remove(r.Key)
		}
		return nil
	})
}

// Copy implements Store.
func (m *Memory) Copy(ctx context.Context, src object.Ref, size int64, dst string) (info object.Info, err error) {
	err = m.do(ctx, "copy", dst, func() error {
		o, err := m.find(src)
		if err != nil {
			return err
		}
		o.data = m.keep(slices.Clone(o.data))
		info = m.info(dst, m.put(dst, o))
		return nil
	})
	return info, err
}

// NewUpload implements Store.
func (m *Memory) NewUpload(ctx context.Context, key string, meta map[string]string) (id string, err error) {
	err = m.do(ctx, "new_upload", key, func() error {
		m.next++
		id = fmt.Sprintf("upload-%d", m.next)
		m.uploads[id] = &upload{key: key, meta: maps.Clone(meta), parts: map[int]memPart{}}
		return nil
	})
	return id, err
}

func (m *Memory) upload(key, id string) (*upload, error) {
	if u := m.uploads[id]; u != nil && u.key == key {
		return u, nil
	}
	return nil, missing("upload")
}

// PutPart implements Store.
func (m *Memory) PutPart(ctx context.Context, key, id string, number int, data []byte, sum uint32) (part object.Part, err error) {
	err = m.do(ctx, "put_part", key, func() error {
		u, err := m.upload(key, id)
		if err != nil {
			return err
		}
		if crc.Sum(data) != sum {
			return object.MakeError(moraine.Corrupt, true, errors.New("part checksum mismatch"))
		}
		m.next++
		part = object.Part{ETag: fmt.Sprintf("part-%d", m.next), CRC: sum, HasCRC: true}
		u.parts[number] = memPart{slices.Clone(data), part.ETag}
		return nil
	})
	return part, err
}

// Complete implements Store.
func (m *Memory) Complete(ctx context.Context, key, id string, parts []object.Part, sum uint32, known bool, cond object.Condition) (info object.Info, err error) {
	err = m.do(ctx, "complete", key, func() error {
		u, err := m.upload(key, id)
		if err != nil {
			return err
		}
		var data []byte
		for i, p := range parts {
			have, ok := u.parts[i+1]
			if !ok || have.etag != p.ETag {
				return object.MakeError(moraine.InvalidArgument, true, fmt.Errorf("part %d has another ETag", i+1))
			}
			data = append(data, have.data...)
		}
		if known && m.traits.WholeCRC && crc.Sum(data) != sum {
			return object.MakeError(moraine.Corrupt, true, errors.New("object checksum mismatch"))
		}
		if err := m.allows(key, cond); err != nil {
			return err
		}
		m.next++
		o := stored{data: m.keep(data), etag: fmt.Sprintf("%d-%d", m.next, len(parts)), meta: u.meta}
		o = m.put(key, o)
		delete(m.uploads, id)
		info = m.info(key, o)
		return nil
	})
	return info, err
}

// keep returns the bytes to store for the data that was sent.
func (m *Memory) keep(data []byte) []byte {
	if m.flip && len(data) > 0 {
		m.flip = false
		data[len(data)/2] ^= 1
	}
	return data
}

// allows evaluates the condition of a completion, as far as the bucket supports it.
func (m *Memory) allows(key string, cond object.Condition) error {
	have, there := m.objects[key].current()
	switch {
	case cond.Free && there && m.traits.IfNoneMatch:
		return object.MakeError(moraine.Conflict, true, errors.New("key is not free"))
	case cond.ETag != "" && have.etag != cond.ETag && m.traits.IfMatch:
		return object.MakeError(moraine.Conflict, true, fmt.Errorf("key has ETag %q", have.etag))
	}
	return nil
}

// Abort implements Store.
func (m *Memory) Abort(ctx context.Context, key, id string) error {
	return m.do(ctx, "abort", key, func() error {
		if _, err := m.upload(key, id); err != nil {
			return err
		}
		delete(m.uploads, id)
		return nil
	})
}

// Uploads implements Store.
func (m *Memory) Uploads(ctx context.Context, key string) (ids []string, err error) {
	err = m.do(ctx, "uploads", key, func() error {
		for id, u := range m.uploads {
			if u.key == key && strings.HasPrefix(id, "upload-") {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return nil
	})
	return ids, err
}
