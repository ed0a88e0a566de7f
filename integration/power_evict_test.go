package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/mover"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/tiers/object/localstore"
	"github.com/morainefs/moraine/transport/wire"
)

// cutBucket is the local bucket of a history: its store, on a disk of its own that
// loses power with the others, without the protocol between.
type cutBucket struct {
	mu    sync.Mutex // guards what follows
	disk  *vfs.Mem
	store *localstore.Store
}

var _ mover.Bucket = (*cutBucket)(nil)

func newCutBucket(seed uint64) (*cutBucket, error) {
	b := &cutBucket{disk: vfs.NewMem(seed + 1000)}
	var err error
	b.store, err = localstore.Open(b.disk, "bucket/store", localstore.Options{})
	return b, err
}

// cut cuts the power of the bucket, and starts it again.
func (b *cutBucket) cut(rng *rand.Rand) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.disk = b.disk.Crash(rng)
	var err error
	b.store, err = localstore.Open(b.disk, "bucket/store", localstore.Options{})
	return err
}

// do carries out one request on the store of this life.
func (b *cutBucket) do(ctx context.Context, fn func(s *localstore.Store) error) error {
	if err := object.CheckFence(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	s := b.store
	b.mu.Unlock()
	if err := fn(s); err != nil {
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

func (b *cutBucket) Name() string   { return "bucket" }
func (b *cutBucket) Prefix() string { return "" }
func (b *cutBucket) URL() string    { return "s3://bucket" }

func (b *cutBucket) Traits(context.Context) (object.Traits, error) {
	t, _ := b.Known()
	return t, nil
}

func (b *cutBucket) Known() (object.Traits, bool) {
	return object.Traits{WholeCRC: true, IfNoneMatch: true, IfMatch: true}, true
}

func (b *cutBucket) Head(ctx context.Context, r object.Ref) (info object.Info, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		rec, err := s.Head(r.Key)
		info = infoOf(rec)
		return errors.Join(err, matches(rec, object.Ref{ETag: map[bool]string{true: r.ETag}[err == nil]}))
	})
	return info, err
}

func (b *cutBucket) Get(ctx context.Context, r object.Ref, off int64, dst []byte) error {
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

func (b *cutBucket) Delete(ctx context.Context, r object.Ref) error {
	return b.do(ctx, func(s *localstore.Store) error { return s.Delete(r.Key) })
}

func (b *cutBucket) Copy(ctx context.Context, src object.Ref, _ int64, dst string) (info object.Info, err error) {
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

func (b *cutBucket) NewUpload(ctx context.Context, key string, meta map[string]string) (id string, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		id, err = s.NewUpload(key, localstore.Record{Meta: meta})
		return err
	})
	return id, err
}

func (b *cutBucket) PutPart(ctx context.Context, key, id string, number int, data []byte, crc uint32) (part object.Part, err error) {
	err = b.do(ctx, func(s *localstore.Store) error {
		r, err := s.PutPart(key, id, number, bytes.NewReader(data), &crc)
		part = object.Part{ETag: r.ETag, CRC: crc, HasCRC: true}
		return err
	})
	return part, err
}

func (b *cutBucket) Complete(ctx context.Context, key, id string, parts []object.Part, crc uint32, _ bool, cond object.Condition) (info object.Info, err error) {
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

func (b *cutBucket) Abort(ctx context.Context, key, id string) error {
	return b.do(ctx, func(s *localstore.Store) error { return s.Abort(key, id) })
}

func (b *cutBucket) Uploads(ctx context.Context, key string) (ids []string, err error) {
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

// evictor flushes and evicts the files of the others.
type evictor struct {
	rng     *rand.Rand
	evicted int
}

// step flushes a file and drops its local bytes. What others do to the file meanwhile
// may leave it as it is.
func (e *evictor) step(ctx context.Context, c *client.Client) error {
	attr, err := c.Stat(ctx, fmt.Sprintf("/user%d/f%d", e.rng.IntN(3), e.rng.IntN(6)))
	if errors.Is(err, moraine.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, kind := range []wire.JobKind{wire.JobKind_JOB_KIND_FLUSH, wire.JobKind_JOB_KIND_EVICT} {
		jobs, err := c.QueueMove(ctx, kind, moraine.InodeID(attr.Inode))
		if errors.Is(err, moraine.NotFound) {
			return nil
		}
		for _, j := range jobs {
			if err == nil {
				_, err = c.WaitJob(ctx, moraine.JobID(j.Id), nil)
			}
		}
		if err != nil && !errors.Is(err, moraine.NotFound) {
			return err
		}
	}
	if now, err := c.StatInode(ctx, moraine.InodeID(attr.Inode)); err == nil && now.Evicted {
		e.evicted++
	}
	return nil
}

// TestPowerCutsWithEvictionsLoseNothing cuts the power of a cluster and of its local
// bucket, to which files are evicted all the time: 100 cuts in the long form.
func TestPowerCutsWithEvictionsLoseNothing(t *testing.T) {
	first, seeds, cuts := powerSeed(t), testseed.Runs(t, 1, 10), testseed.Of(3, 10)
	var met siteCounts
	var mu sync.Mutex
	var all struct{ cuts, operations, evicted int }
	t.Run("histories", func(t *testing.T) {
		for i := range seeds {
			seed := first + uint64(i)
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					bucket, err := newCutBucket(seed)
					require.NoError(t, err)
					h, err := runHistoryOn(t.Context(), seed, cuts, met.rule, bucket)
					require.NoError(t, err)
					mu.Lock()
					defer mu.Unlock()
					all.cuts, all.operations, all.evicted = all.cuts+h.cuts, all.operations+h.acked, all.evicted+h.evictor.evicted
				})
			})
		}
	})
	t.Logf("%d cuts, %d operations acknowledged, %d files evicted, 0 lost", all.cuts, all.operations, all.evicted)
	if !t.Failed() && all.cuts >= 100 {
		require.NotZero(t, all.evicted)
	}
}
