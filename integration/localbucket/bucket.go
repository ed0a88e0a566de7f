// Package localbucket is the local bucket of a cluster inside one process. It
// is the shipped store (tiers/object/localstore) on a disk in memory, with the
// interface of movers and chunkservers, without HTTP. A test can cut the power
// of the disk, damage its contents, and leave out any call of the store's file
// system.
//
// One path through it: New makes a bucket, and incluster.Options.Bucket returns it.
// A mover uploads an object. Cut cuts the power and opens the store again on what
// is left.
package localbucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/localstore"
)

// Dir is the directory of the store on its disk.
const Dir = "bucket/store"

// Bucket is one local bucket through all lives of its store. All methods may be
// called concurrently.
type Bucket struct {
	rule vfs.Rule

	mu    sync.Mutex // guards the fields below
	disk  *vfs.Mem
	store *localstore.Store
}

var _ object.Store = (*Bucket)(nil)

// New opens an empty bucket. rule is called before each call of its file system
// (nil: never). The seed decides what a cut leaves if Cut gets no rng.
func New(seed uint64, rule vfs.Rule) (*Bucket, error) {
	b := &Bucket{rule: rule, disk: vfs.NewMem(seed + 1000)}
	return b, b.open()
}

// open opens the store of the next life. The caller holds mu, or has the only
// reference to b.
func (b *Bucket) open() (err error) {
	var fs vfs.FS = b.disk
	if b.rule != nil {
		fs = vfs.NewFault(fs, b.rule)
	}
	b.store, err = localstore.Open(fs, Dir, localstore.Options{})
	return err
}

// Cut cuts the power of the bucket's machine, and restarts it.
func (b *Bucket) Cut(rng *rand.Rand) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disk = b.disk.Crash(rng)
	return b.open()
}

// Store is the store of the current life.
func (b *Bucket) Store() *localstore.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store
}

// Disk is the disk of the current life, which a test may damage.
func (b *Bucket) Disk() *vfs.Mem {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.disk
}

// do performs one request on the store of this life.
func (b *Bucket) do(ctx context.Context, fn func(s *localstore.Store) error) error {
	if err := object.CheckFence(ctx); err != nil {
		return err
	}
	if err := fn(b.Store()); err != nil {
		return object.MakeError(moraine.KindOf(err), true, err)
	}
	return nil
}

func infoOf(r localstore.Record) object.Info {
	return object.Info{Ref: object.Ref{Key: r.Key, ETag: r.ETag}, Size: r.Size, CRC: r.CRC, HasCRC: true, Meta: r.Meta}
}

func matches(r localstore.Record, want object.Ref) error {
	if want.ETag != "" && want.ETag != r.ETag {
		return moraine.Conflict
	}
	return nil
}

// Name implements object.Store.
func (b *Bucket) Name() string { return "bucket" }

// Prefix implements object.Store.
func (b *Bucket) Prefix() string { return "" }

// URL implements object.Store.
func (b *Bucket) URL() string { return "s3://bucket" }

// Traits implements object.Store.
func (b *Bucket) Traits(context.Context) (object.Traits, error) {
	t, _ := b.Known()
	return t, nil
}

// Known implements object.Store.
func (b *Bucket) Known() (object.Traits, bool) {
	return object.Traits{WholeCRC: true, IfNoneMatch: true, IfMatch: true}, true
}

// Head implements object.Store.
func (b *Bucket) Head(ctx context.Context, r object.Ref) (info object.Info, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		rec, err := s.Head(r.Key)
		if err != nil {
			return err
		}
		info = infoOf(rec)
		return matches(rec, r)
	})
	return info, err
}

// Get implements object.Store.
func (b *Bucket) Get(ctx context.Context, r object.Ref, off int64, dst []byte) error {
	return b.do(ctx, func(s *localstore.Store) error {
		return withObject(s, r, func(_ localstore.Record, f io.ReaderAt) error {
			_, err := f.ReadAt(dst, off)
			if err == io.EOF {
				err = nil
			}
			return err
		})
	})
}

// withObject calls fn with the object at a key, if it is the one of r.
func withObject(s *localstore.Store, r object.Ref, fn func(rec localstore.Record, f io.ReaderAt) error) error {
	rec, f, err := s.Get(r.Key)
	if err != nil {
		return err
	}
	if err = matches(rec, r); err == nil {
		err = fn(rec, f)
	}
	return errors.Join(err, f.Close())
}

// Delete implements object.Store.
func (b *Bucket) Delete(ctx context.Context, r object.Ref) error {
	return b.do(ctx, func(s *localstore.Store) error { return s.Delete(r.Key, r.ETag) })
}

// Copy implements object.Store.
func (b *Bucket) Copy(ctx context.Context, src object.Ref, _ int64, dst string) (info object.Info, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		return withObject(s, src, func(rec localstore.Record, f io.ReaderAt) error {
			made, err := s.Put(dst, localstore.Record{Meta: rec.Meta}, io.NewSectionReader(f, 0, rec.Size), &rec.CRC, localstore.Condition{})
			info = infoOf(made)
			return err
		})
	})
	return info, err
}

// NewUpload implements object.Store.
func (b *Bucket) NewUpload(ctx context.Context, key string, meta map[string]string) (id string, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		id, err = s.NewUpload(key, localstore.Record{Meta: meta})
		return err
	})
	return id, err
}

// PutPart implements object.Store.
func (b *Bucket) PutPart(ctx context.Context, key, id string, number int, data []byte, crc uint32) (part object.Part, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		r, err := s.PutPart(key, id, number, bytes.NewReader(data), &crc)
		part = object.Part{ETag: r.ETag, CRC: crc, HasCRC: true}
		return err
	})
	return part, err
}

// Complete implements object.Store.
func (b *Bucket) Complete(ctx context.Context, key, id string, parts []object.Part, crc uint32, _ bool, cond object.Condition) (info object.Info, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		list := make([]localstore.Part, len(parts))
		for i, p := range parts {
			list[i] = localstore.Part{Number: i + 1, Record: localstore.Record{ETag: p.ETag}}
		}
		r, err := s.Complete(key, id, list, &crc, localstore.Condition{Free: cond.Free, ETag: cond.ETag})
		info = infoOf(r)
		return err
	})
	return info, err
}

// Abort implements object.Store.
func (b *Bucket) Abort(ctx context.Context, key, id string) error {
	return b.do(ctx, func(s *localstore.Store) error { return s.Abort(key, id) })
}

// Uploads implements object.Store.
func (b *Bucket) Uploads(ctx context.Context, key string) (ids []string, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		all, err := s.Uploads(key)
		for _, u := range all {
			if u.Record.Key == key {
				ids = append(ids, u.ID)
			}
		}
		return err
	})
	return ids, err
}
