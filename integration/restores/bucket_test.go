package restores_test

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/mover"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/localstore"
	"github.com/morainefs/moraine/transport/wire"
)

// bucket is the local bucket of a history: its store, without the protocol between.
type bucket struct {
	store *localstore.Store
}

var _ mover.Bucket = (*bucket)(nil)

func newBucket(seed uint64) (*bucket, error) {
	store, err := localstore.Open(vfs.NewMem(seed+1000), "bucket/store", localstore.Options{})
	return &bucket{store}, err
}

// do carries out one request on the store of this life.
func (b *bucket) do(ctx context.Context, fn func(s *localstore.Store) error) error {
	if err := object.CheckFence(ctx); err != nil {
		return err
	}
	if err := fn(b.store); err != nil {
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

func (b *bucket) Name() string   { return "bucket" }
func (b *bucket) Prefix() string { return "" }
func (b *bucket) URL() string    { return "s3://bucket" }

func (b *bucket) Traits(context.Context) (object.Traits, error) {
	t, _ := b.Known()
	return t, nil
}

func (b *bucket) Known() (object.Traits, bool) {
	return object.Traits{WholeCRC: true, IfNoneMatch: true, IfMatch: true}, true
}

func (b *bucket) Head(ctx context.Context, r object.Ref) (info object.Info, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		rec, err := s.Head(r.Key)
		info = infoOf(rec)
		return errors.Join(err, matches(rec, object.Ref{ETag: map[bool]string{true: r.ETag}[err == nil]}))
	})
	return info, err
}

func (b *bucket) Get(ctx context.Context, r object.Ref, off int64, dst []byte) error {
	return b.do(ctx, func(s *localstore.Store) error {
		rec, f, err := s.Get(r.Key)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := matches(rec, r); err != nil {
			return err
		}
		_, err = f.ReadAt(dst, off)
		if err == io.EOF {
			err = nil
		}
		return err
	})
}

func (b *bucket) Delete(ctx context.Context, r object.Ref) error {
	return b.do(ctx, func(s *localstore.Store) error { return s.Delete(r.Key, r.ETag) })
}

func (b *bucket) Copy(ctx context.Context, src object.Ref, _ int64, dst string) (info object.Info, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		rec, f, err := s.Get(src.Key)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := matches(rec, src); err != nil {
			return err
		}
		made, err := s.Put(dst, localstore.Record{Meta: rec.Meta}, io.NewSectionReader(f, 0, rec.Size), &rec.CRC, localstore.Condition{})
		info = infoOf(made)
		return err
	})
	return info, err
}

func (b *bucket) NewUpload(ctx context.Context, key string, meta map[string]string) (id string, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		id, err = s.NewUpload(key, localstore.Record{Meta: meta})
		return err
	})
	return id, err
}

func (b *bucket) PutPart(ctx context.Context, key, id string, number int, data []byte, crc uint32) (part object.Part, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		r, err := s.PutPart(key, id, number, bytes.NewReader(data), &crc)
		part = object.Part{ETag: r.ETag, CRC: crc, HasCRC: true}
		return err
	})
	return part, err
}

func (b *bucket) Complete(ctx context.Context, key, id string, parts []object.Part, crc uint32, _ bool, cond object.Condition) (info object.Info, err error) {
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

func (b *bucket) Abort(ctx context.Context, key, id string) error {
	return b.do(ctx, func(s *localstore.Store) error { return s.Abort(key, id) })
}

func (b *bucket) Uploads(ctx context.Context, key string) (ids []string, err error) {
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

// has reports whether the bucket has an object at its key, as it was recorded.
func (b *bucket) has(objects []*wire.Object, id uint64) bool {
	for _, o := range objects {
		if o.Id == id {
			rec, err := b.store.Head(o.Key)
			return err == nil && rec.ETag == o.Etag && rec.Size == int64(o.Size)
		}
	}
	return false
}
