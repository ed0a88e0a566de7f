package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Bucket is the bucket of a cluster, as its movers use it.
type Bucket struct {
	S3Server
	Name string
}

// movedFiles is how many files a move is measured with; one host moves each.
const movedFiles = 4

// Flush measures how fast durable files are flushed to the bucket, compared with a
// plain S3 client.
func Flush(ctx context.Context, e *Env) ([]Line, error) {
	m, err := newMover(ctx, e)
	if err != nil {
		return nil, err
	}
	defer m.end()
	e.Progress("flush")
	line, err := m.measure(ctx, "flush", client.JobFlush)
	if err != nil {
		return nil, err
	}
	limit, err := m.bucketLimit(ctx, s3PutAll)
	return []Line{line.against(limit, "plain PUT into the bucket")}, err
}

// Stage measures how fast evicted files are staged from the bucket, compared with a
// plain S3 client.
func Stage(ctx context.Context, e *Env) ([]Line, error) {
	m, err := newMover(ctx, e)
	if err != nil {
		return nil, err
	}
	defer m.end()
	e.Progress("flushing and evicting the files to stage")
	for _, kind := range []client.JobKind{client.JobFlush, client.JobEvict} {
		if err := m.move(ctx, kind); err != nil {
			return nil, err
		}
	}
	if err := e.servers().cool(ctx); err != nil {
		return nil, err
	}
	e.Progress("stage")
	line, err := m.measure(ctx, "stage", client.JobStage)
	if err != nil {
		return nil, err
	}
	limit, err := m.bucketLimit(ctx, s3GetAll)
	return []Line{line.against(limit, "plain GET from the bucket")}, err
}

// mover moves the files of a benchmark between tiers.
type mover struct {
	*Env
	c     *client.Client
	end   func()
	works []Work
	files []moraine.InodeID
	bytes float64
}

// newMover writes the files to move.
func newMover(ctx context.Context, e *Env) (*mover, error) {
	if e.Connect == nil {
		return nil, errors.New("bench: only a cluster moves files between tiers: leave out --path")
	}
	w := *e
	w.Clients = movedFiles
	m := &mover{Env: e, works: w.works(OpWrite, dataDir)}
	if err := w.ensureData(ctx); err != nil {
		return nil, err
	}
	c, end, err := e.Connect(ctx)
	if err != nil {
		return nil, err
	}
	m.c, m.end = c, func() { _ = end() }
	for _, w := range m.works {
		attr, err := c.Stat(ctx, w.Path)
		if err != nil {
			m.end()
			return nil, err
		}
		m.files = append(m.files, attr.Inode())
		m.bytes += float64(attr.Size())
	}
	return m, nil
}

// measure moves all files, and returns the rate.
func (m *mover) measure(ctx context.Context, name string, kind client.JobKind) (Line, error) {
	u, err := m.Env.measure(ctx, func(ctx context.Context) error { return m.move(ctx, kind) })
	if err != nil {
		return Line{}, err
	}
	return m.rate(name, m.bytes, u, u.read+u.wrote), nil
}

// movePoll is the interval of checks whether a job has ended; a run takes seconds.
const movePoll = 10 * time.Millisecond

// move moves all files, and returns when they are moved.
func (m *mover) move(ctx context.Context, kind client.JobKind) error {
	jobs, err := m.c.Jobs().Queue(ctx, kind, m.files...)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		for j.State == client.JobPending || j.State == client.JobRunning {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(movePoll):
			}
			if j, err = m.c.Jobs().Get(ctx, j.ID); err != nil {
				return err
			}
		}
		if j.State != client.JobDone {
			return fmt.Errorf("bench: %s of %s ended as %s: %s", j.Kind, j.Subject, j.State, j.Error)
		}
	}
	return nil
}

// bucketLimit measures a plain S3 client with as many objects and bytes as were
// moved, in GB/s; 0 if the bucket is unknown.
func (m *mover) bucketLimit(ctx context.Context, work func(context.Context, *minio.Client, string, []Work, [][]byte) (time.Duration, error)) (float64, error) {
	if m.Bucket == nil {
		return 0, nil
	}
	m.Progress("a plain S3 client")
	c, err := m.Bucket.dial()
	if err != nil {
		return 0, err
	}
	buf, err := alignedRandom(movedFiles * limitSource)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(buf) //nolint:errcheck // the process ends
	bufs := make([][]byte, len(m.works))
	for i := range bufs {
		bufs[i] = buf[i*limitSource : (i+1)*limitSource]
	}
	d, err := work(ctx, c, m.Bucket.Name, m.works, bufs)
	return perSecond(m.bytes, d) / gb, err
}

// limitSource is the size of the memory from which each object of the limit is put,
// and into which it is read.
const limitSource = s3InFlight * s3Part

// s3PutAll puts an object for each work, all concurrently.
func s3PutAll(ctx context.Context, c *minio.Client, bucket string, works []Work, bufs [][]byte) (time.Duration, error) {
	return together(ctx, works, func(ctx context.Context, i int, w Work) error {
		return s3Put(ctx, c, bucket, limitKey(i), w.Bytes, bufs[i])
	})
}

// s3GetAll gets, cold, the objects of s3PutAll.
func s3GetAll(ctx context.Context, c *minio.Client, bucket string, works []Work, bufs [][]byte) (time.Duration, error) {
	if _, err := s3PutAll(ctx, c, bucket, works, bufs); err != nil {
		return 0, err
	}
	if err := dropPageCache(); err != nil {
		return 0, err
	}
	return together(ctx, works, func(ctx context.Context, i int, _ Work) error {
		_, err := s3Get(ctx, c, bucket, limitKey(i), bufs[i])
		return err
	})
}

func limitKey(i int) string { return fmt.Sprintf("bench-limit-%d-%d", os.Getpid(), i) }

func together(ctx context.Context, works []Work, do func(ctx context.Context, i int, w Work) error) (time.Duration, error) {
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i, w := range works {
		g.Go(func() error { return do(ctx, i, w) })
	}
	err := g.Wait()
	return time.Since(start), err
}
