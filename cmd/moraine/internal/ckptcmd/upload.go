package ckptcmd

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/bucketflags"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/tiers/object"
)

const (
	// uploadPart is the least length of a part of an upload, but for the last one.
	uploadPart = 32 << 20
	// uploadTries bounds how often a part is sent, with uploadPause between two.
	uploadTries = 5
	uploadPause = 2 * time.Second
)

// bucketTarget is a prefix of a bucket that gets files.
type bucketTarget struct {
	env    *cli.Env
	bucket *object.Bucket
}

func openBucket(ctx context.Context, env *cli.Env, url string, flags *bucketflags.Flags) (writer, error) {
	cfg, err := flags.Config(url)
	if err != nil {
		return nil, cli.AsWrongUse(err)
	}
	b, err := object.New(cfg, object.Deps{})
	if err != nil {
		return nil, cli.AsWrongUse(err)
	}
	return &bucketTarget{env, b}, b.Probe(ctx)
}

// writeAll uploads the files in order. After an error it deletes those that it uploaded.
func (t *bucketTarget) writeAll(ctx context.Context, copies []fileCopy) (err error) {
	var total int64
	for _, c := range copies {
		total += c.size
	}
	bar := t.env.StartBar("exported", total)
	defer func() { bar.Finish(err) }()
	var done []object.Ref
	for _, c := range copies {
		u := &upload{ctx: ctx, bucket: t.bucket, key: path.Join(t.bucket.Prefix(), c.path)}
		info, err := u.run(c, bar)
		if err != nil {
			for _, r := range done {
				err = errors.Join(err, t.bucket.Delete(context.WithoutCancel(ctx), r))
			}
			return err
		}
		done = append(done, info.Ref)
	}
	return nil
}

// upload is one file on its way to a bucket. It sends a part when the part is full.
type upload struct {
	ctx    context.Context // io.Writer has none
	bucket *object.Bucket
	key    string
	id     string
	size   int // of a part
	buf    []byte
	parts  []object.Part
	sum    uint32
}

// run uploads a file. Without an error the object is complete.
func (u *upload) run(c fileCopy, bar *cli.Bar) (info object.Info, err error) {
	if u.id, err = u.bucket.NewUpload(u.ctx, u.key, nil); err != nil {
		return info, err
	}
	u.size = int(max(uploadPart, (c.size+object.MaxParts-1)/object.MaxParts))
	if err = c.fill(u.ctx, countedWriter{u, bar}); err == nil && (len(u.buf) > 0 || len(u.parts) == 0) {
		err = u.send()
	}
	if err != nil {
		return info, errors.Join(err, u.bucket.Abort(context.WithoutCancel(u.ctx), u.key, u.id))
	}
	return u.bucket.Complete(u.ctx, u.key, u.id, u.parts, u.sum, true, object.Condition{})
}

// Write takes bytes, and sends the parts that they fill.
func (u *upload) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if u.buf == nil {
			u.buf = make([]byte, 0, u.size)
		}
		k := min(len(p), u.size-len(u.buf))
		u.buf = append(u.buf, p[:k]...)
		p, n = p[k:], n+k
		if len(u.buf) == u.size {
			if err := u.send(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// send sends the part in the buffer, again if the store did not take it.
func (u *upload) send() error {
	sum := crc.Sum(u.buf)
	for try := 1; ; try++ {
		part, err := u.bucket.PutPart(u.ctx, u.key, u.id, len(u.parts)+1, u.buf, sum)
		if err == nil {
			u.parts = append(u.parts, part)
			u.sum = crc.Combine(u.sum, sum, int64(len(u.buf)))
			u.buf = u.buf[:0]
			return nil
		}
		if try == uploadTries || !errors.Is(err, moraine.Unavailable) && !errors.Is(err, moraine.Timeout) {
			return err
		}
		select {
		case <-time.After(uploadPause):
		case <-u.ctx.Done():
			return err
		}
	}
}
