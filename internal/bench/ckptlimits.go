package bench

import (
	"context"
	"fmt"
)

// ckptLimits are the physical limits of one run, in GB/s.
type ckptLimits struct {
	copyCRC, memcpy          float64
	diskWrite, diskRead      float64
	loopbackPut, loopbackGet float64
	bucketPut, bucketGet     float64
}

// better returns the better of two measurements of each limit.
func (l ckptLimits) better(o ckptLimits) ckptLimits {
	return ckptLimits{
		max(l.copyCRC, o.copyCRC), max(l.memcpy, o.memcpy),
		max(l.diskWrite, o.diskWrite), max(l.diskRead, o.diskRead),
		max(l.loopbackPut, o.loopbackPut), max(l.loopbackGet, o.loopbackGet),
		max(l.bucketPut, o.bucketPut), max(l.bucketGet, o.bucketGet),
	}
}

// measureLimits measures all limits once. Nothing else may run meanwhile. The tensors of the ranks
// stay as they are.
func (r *ckptRun) measureLimits(ctx context.Context, when string) (l ckptLimits, err error) {
	r.Progress("copy + CRC32C, %s", when)
	if l.copyCRC, l.memcpy, err = r.memoryLimits(ctx); err != nil {
		return l, err
	}
	r.Progress("the disk, %s", when)
	if l.diskWrite, l.diskRead, err = r.disk(ctx); err != nil {
		return l, err
	}
	put, err := r.loopbackRate(ctx, "loopback-put", true, r.Bytes)
	if err != nil {
		return l, err
	}
	get, err := r.loopbackRate(ctx, "loopback-get", false, r.Bytes)
	if err != nil {
		return l, err
	}
	r.Progress("a plain S3 client, %s", when)
	l.bucketPut, l.bucketGet, err = r.bucketLimits(ctx)
	l.diskWrite, l.diskRead, l.loopbackPut, l.loopbackGet = l.diskWrite/gb, l.diskRead/gb, put.Value, get.Value
	return l, err
}

// memoryLimits measures copies into warm arenas with checksums, and back without.
func (r *ckptRun) memoryLimits(ctx context.Context) (copyCRC, memcpy float64, err error) {
	arenas, end, err := warmArenas(r.trainers)
	defer end()
	if err != nil {
		return 0, 0, err
	}
	if copyCRC, err = copyRate(ctx, r.trainers, arenas, copyAndSum); err != nil {
		return 0, 0, err
	}
	memcpy, err = copyRate(ctx, r.trainers, arenas, copyBack)
	return copyCRC / gb, memcpy / gb, err
}

// bucketLimits measures a plain S3 client: an object of the size of a part for each rank, at once.
func (r *ckptRun) bucketLimits(ctx context.Context) (put, get float64, err error) {
	m := &mover{Env: r.Env, bytes: r.trainers.bytes}
	for _, t := range r.trainers.ranks {
		m.works = append(m.works, Work{Bytes: t.shard.Bytes()})
	}
	if put, err = m.bucketLimit(ctx, s3PutAll); err != nil {
		return 0, 0, fmt.Errorf("bench: plain PUT into the bucket: %w", err)
	}
	if get, err = m.bucketLimit(ctx, s3GetAll); err != nil {
		return 0, 0, fmt.Errorf("bench: plain GET from the bucket: %w", err)
	}
	return put, get, nil
}
