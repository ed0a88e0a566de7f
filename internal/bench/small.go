package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// small runs small operations on all targets concurrently until the time is over,
// or no files are left.
func small(ctx context.Context, targets []Target, w Work) (Result, error) {
	var ops atomic.Int64
	each := make([]int, len(targets))
	end := time.Now().Add(time.Duration(w.Seconds * float64(time.Second)))
	g, ctx := errgroup.WithContext(ctx)
	for i, t := range targets {
		g.Go(func() error {
			c := &smallClient{op: w.Op, dir: path.Join(w.Path, fmt.Sprintf("client-%d", i)), random: rand.New(rand.NewPCG(1, uint64(i)))}
			switch {
			case w.Op == OpCreate, w.Op == OpSmallFile:
				if err := t.Mkdir(ctx, c.dir); err != nil {
					return err
				}
			case w.Op == OpStatLoaded && w.Loaded > 0:
				c.loaded = w.Loaded
			case len(w.Files) <= i || w.Files[i] == 0:
				return errors.New("bench: no files to work on")
			default:
				c.files = w.Files[i]
			}
			if i < len(w.Renames) {
				c.renames = w.Renames[i]
			}
			for n := 0; time.Now().Before(end) && ctx.Err() == nil && (w.Op != OpUnlink || n < c.files); n++ {
				name, to := c.names(n)
				if err := t.Small(ctx, w.Op, name, to); err != nil {
					return err
				}
				each[i] = n + 1
				ops.Add(1)
			}
			return nil
		})
	}
	err := g.Wait()
	return Result{Ops: ops.Load(), Each: each}, err
}

// smallClient knows the files of one client.
type smallClient struct {
	op             Op
	dir            string
	files, renames int
	loaded         uint64
	random         *rand.Rand
}

// names returns the files of the n-th operation.
func (c *smallClient) names(n int) (name, to string) {
	switch c.op {
	case OpCreate, OpSmallFile:
		return c.file(n, 0), ""
	case OpStat:
		return c.file(c.random.IntN(c.files), 0), ""
	case OpStatLoaded:
		return fillPath(c.random.Uint64N(c.loaded)), ""
	case OpCommit:
		return path.Join(c.dir, "appended"), ""
	case OpRename:
		return c.file(n%c.files, n/c.files), c.file(n%c.files, n/c.files+1)
	case OpUnlink:
		times := c.renames / c.files
		if n < c.renames%c.files {
			times++
		}
		return c.file(n, times), ""
	}
	return c.dir, ""
}

// file is the name of the n-th file after so many renames.
func (c *smallClient) file(n, times int) string {
	name := path.Join(c.dir, fmt.Sprintf("file-%07d", n))
	if times > 0 {
		name += fmt.Sprintf(".%d", times)
	}
	return name
}
