package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// The foreground load while a chunkserver is rebuilt: so many operations per
// second, by so many clients, of so many bytes each.
const (
	foregroundReads, foregroundReaders  = 200, 8
	foregroundWrites, foregroundWriters = 50, 4
	foregroundBytes                     = 64 << 10
	foregroundDir                       = "/bench-foreground"
)

// foreground is concurrent reads and writes.
type foreground struct{ reads, writes *pace }

// startForeground starts random reads from the files, and writes of small files of its
// own. Without a foreground it returns nil, whose methods do nothing.
func startForeground(ctx context.Context, e *Env, files []Work) (f *foreground, err error) {
	if e.NoForeground {
		return nil, nil
	}
	if err := e.mkdir(ctx, foregroundDir); err != nil {
		return nil, err
	}
	f = &foreground{}
	if f.reads, err = startPace(ctx, e, foregroundReaders, foregroundReads, func(c *client.Client, i int) (func(context.Context, int) error, error) {
		return randomReader(ctx, c, files[i%len(files)], uint64(i))
	}); err != nil {
		return nil, err
	}
	f.writes, err = startPace(ctx, e, foregroundWriters, foregroundWrites, func(c *client.Client, i int) (func(context.Context, int) error, error) {
		return smallWriter(c, i), nil
	})
	if err != nil {
		return nil, errors.Join(err, f.reads.end())
	}
	return f, nil
}

// randomReader reads blocks of a file at random.
func randomReader(ctx context.Context, c *client.Client, w Work, seed uint64) (func(context.Context, int) error, error) {
	r, err := c.OpenFile(ctx, w.Path)
	if err != nil {
		return nil, err
	}
	rng, buf := rand.New(rand.NewPCG(3, seed)), make([]byte, foregroundBytes)
	blocks := r.Size() / foregroundBytes
	if blocks == 0 {
		return nil, fmt.Errorf("bench: %s is shorter than one read", w.Path)
	}
	return func(ctx context.Context, _ int) error {
		return r.ReadRange(ctx, buf, rng.Int64N(blocks)*foregroundBytes)
	}, nil
}

// smallWriter makes one small file after the other, each durable.
func smallWriter(c *client.Client, i int) func(context.Context, int) error {
	buf := make([]byte, foregroundBytes)
	fillRandom(buf, uint64(i))
	return func(ctx context.Context, n int) error {
		f, err := c.Create(ctx, fmt.Sprintf("%s/writer-%d-file-%07d", foregroundDir, i, n), client.CreateOptions{Level: moraine.NVMe})
		if err != nil {
			return err
		}
		if _, err := f.Write(buf); err != nil {
			f.Abort()
			return err
		}
		_, err = f.Commit(ctx)
		return err
	}
}

func (f *foreground) begin() { f.lap() }

func (f *foreground) lap() foregroundLap {
	if f == nil {
		return foregroundLap{}
	}
	return foregroundLap{f.reads.lap(), f.writes.lap()}
}

func (f *foreground) end() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.reads.end(), f.writes.end())
}

// foregroundLap is the foreground's operations in a phase.
type foregroundLap struct{ reads, writes lap }

// lines are its latencies in a phase, compared with those of a calm one.
func (l foregroundLap) lines(e *Env, phase string, calm foregroundLap) (lines []Line, err error) {
	if e.NoForeground {
		return nil, nil
	}
	for _, kind := range []struct {
		name      string
		now, calm lap
	}{{"read", l.reads, calm.reads}, {"write", l.writes, calm.writes}} {
		if kind.now.done == 0 || kind.calm.done == 0 {
			return nil, fmt.Errorf("bench: no %s in %v (%s), or none in %v before", kind.name, kind.now.wall, phase, kind.calm.wall)
		}
		for _, q := range []struct {
			name string
			part float64
		}{{"p50", 0.5}, {"p99", 0.99}} {
			lines = append(lines, Line{Name: e.name(phase + "-" + kind.name + "-" + q.name), Value: kind.now.at(q.part), Unit: "ms"}.against(kind.calm.at(q.part), "before"))
		}
	}
	return lines, nil
}
