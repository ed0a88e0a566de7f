// Package objecttest is a bucket in memory, for tests on a fake clock, and the
// suite that holds it and the real one to the same contract. Package s3test has
// a real server.
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

// Store is what movers and chunkservers use of a bucket. *object.Bucket and
// *Memory implement it; what the methods promise is said there.
type Store interface {
	Name() string
	Prefix() string
	Head(ctx context.Context, r object.Ref) (object.Info, error)
	Get(ctx context.Context, r object.Ref, off int64, dst []byte) error
	Delete(ctx context.Context, r object.Ref) error
	Copy(ctx context.Context, src object.Ref, size int64, dst string) (object.Info, error)
	NewUpload(ctx context.Context, key string, meta map[string]string) (string, error)
	PutPart(ctx context.Context, key, id string, number int, data []byte, crc uint32) (object.Part, error)
	Complete(ctx context.Context, key, id string, parts []object.Part, crc uint32, known bool) (object.Info, error)
	Abort(ctx context.Context, key, id string) error
	Uploads(ctx context.Context, key string) ([]string, error)
}

var _, _ Store = (*object.Bucket)(nil), (*Memory)(nil)

// Memory is a bucket in memory, for tests under a fake clock: it waits for
// nothing.
type Memory struct {
	mu      sync.Mutex // guards what follows
	objects map[string]stored
	uploads map[string]*upload
	next    int
	hook    Hook
}

type stored struct {
	data []byte
	etag string
	meta map[string]string
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

// Hook sees each request before it is carried out. It may fail it, or return
// what is told its error and may replace it. It runs outside of the bucket's
// lock and may wait.
type Hook func(ctx context.Context, op, key string) (after func(error) error, err error)

// NewMemory makes an empty bucket.
func NewMemory() *Memory {
	return &Memory{objects: map[string]stored{}, uploads: map[string]*upload{}}
}

// SetHook has hook see each request; nil for none.
func (m *Memory) SetHook(hook Hook) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = hook
}

// Name and Prefix are those of every such bucket.
func (m *Memory) Name() string   { return "memory" }
func (m *Memory) Prefix() string { return "tier" }

// Keys returns all keys, in order.
func (m *Memory) Keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.objects))
}

// Open returns how many uploads are unfinished.
func (m *Memory) Open() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.uploads)
}

// Bytes returns what is at a key, nil for nothing.
func (m *Memory) Bytes(key string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.objects[key].data)
}

// Spoil changes a byte of what is at a key, as a broken store does.
func (m *Memory) Spoil(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[key]
	o.data = slices.Clone(o.data)
	o.data[len(o.data)/2] ^= 1
	m.objects[key] = o
}

// Put writes a key as somebody else's program does.
func (m *Memory) Put(key string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	m.objects[key] = stored{data: slices.Clone(data), etag: fmt.Sprintf("foreign-%d", m.next)}
}

// Failure is an error as package object makes them.
func Failure(kind moraine.Kind, refused bool) error {
	return object.MakeError(kind, refused, errors.New("made to fail"))
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
	o, ok := m.objects[r.Key]
	switch {
	case !ok || r.Version != "":
		return o, missing("key")
	case r.ETag != "" && r.ETag != o.etag:
		return o, object.MakeError(moraine.Conflict, true, fmt.Errorf("etag %s is there", o.etag))
	}
	return o, nil
}

func (o stored) info(key string) object.Info {
	return object.Info{Ref: object.Ref{Key: key, ETag: o.etag}, Size: int64(len(o.data)), CRC: crc.Sum(o.data), HasCRC: true, Meta: maps.Clone(o.meta)}
}

// Head implements Store.
func (m *Memory) Head(ctx context.Context, r object.Ref) (info object.Info, err error) {
	err = m.do(ctx, "head", r.Key, func() error {
		o, err := m.find(r)
		if err == nil {
			info = o.info(r.Key)
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
			return object.MakeError(moraine.Conflict, true, errors.New("past the end"))
		}
		copy(dst, o.data[off:])
		return nil
	})
}

// Delete implements Store.
func (m *Memory) Delete(ctx context.Context, r object.Ref) error {
	return m.do(ctx, "delete", r.Key, func() error {
		delete(m.objects, r.Key)
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
		m.objects[dst] = o
		info = o.info(dst)
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
			return object.MakeError(moraine.Corrupt, true, errors.New("the sum is another"))
		}
		m.next++
		part = object.Part{ETag: fmt.Sprintf("part-%d", m.next), CRC: sum, HasCRC: true}
		u.parts[number] = memPart{slices.Clone(data), part.ETag}
		return nil
	})
	return part, err
}

// Complete implements Store.
func (m *Memory) Complete(ctx context.Context, key, id string, parts []object.Part, sum uint32, known bool) (info object.Info, err error) {
	err = m.do(ctx, "complete", key, func() error {
		u, err := m.upload(key, id)
		if err != nil {
			return err
		}
		var data []byte
		for i, p := range parts {
			have, ok := u.parts[i+1]
			if !ok || have.etag != p.ETag {
				return object.MakeError(moraine.InvalidArgument, true, fmt.Errorf("part %d is another", i+1))
			}
			data = append(data, have.data...)
		}
		if known && crc.Sum(data) != sum {
			return object.MakeError(moraine.Corrupt, true, errors.New("the sum is another"))
		}
		m.next++
		o := stored{data: data, etag: fmt.Sprintf("%d-%d", m.next, len(parts)), meta: u.meta}
		m.objects[key] = o
		delete(m.uploads, id)
		info = o.info(key)
		return nil
	})
	return info, err
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
