package bench

import (
	"context"
	"errors"
	"fmt"
)

// Fuse measures the same as Write and Read, through a mount: the write ends with an
// fsync and a close.
func Fuse(ctx context.Context, e *Env) (lines []Line, err error) {
	if e.Mount == nil {
		return nil, errors.New("bench: fuse mounts a cluster itself: leave --path out, or measure that path with `bench write` and `bench read`")
	}
	e.Progress("mounting")
	dir, end, err := e.Mount(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if eerr := end(); eerr != nil {
			err = errors.Join(err, fmt.Errorf("bench: mount failed at its end: %w", eerr))
		}
	}()
	m := *e
	m.Prefix = "fuse-"
	m.Worker = append(e.Worker[:len(e.Worker):len(e.Worker)], "--path", dir)
	m.Open = func(context.Context) (Target, error) { return PathTarget(dir), nil }
	if lines, _, err = writeDurably(ctx, &m); err != nil {
		return nil, err
	}
	m.written = !m.rotates()
	read, err := readCold(ctx, &m)
	return append(lines, read...), err
}
