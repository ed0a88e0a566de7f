package jobcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
)

const (
	// waitPoll is the longest pause between two looks at the jobs.
	waitPoll = 250 * time.Millisecond
	// waitShare bounds the share of the time that these looks take: a tree of many files is
	// checked less often.
	waitShare = 5
	// maxLinks bounds how many symbolic links are followed, one after the other.
	maxLinks = 40
)

// moveResult is what a move with --wait prints.
type moveResult struct {
	Path  jsonname.Name `json:"path"`
	Move  string        `json:"move"`
	Files int           `json:"files"`
	Bytes uint64        `json:"bytes"`
	Left  int           `json:"left"`
}

// waiting waits for the moves of one path.
type waiting struct {
	*cli.Env
	c    *cli.Connection
	move move
	path string // of a file or a directory, not of a link to it
	jobs []client.Job
	said map[string]bool // failures
}

// moveProgress is how far a move is.
type moveProgress struct {
	moveResult
	total, done uint64 // bytes; done with what is under way
	busy        bool   // jobs are left that will move it further
}

// waitMove waits until the jobs of a path have ended, and then prints the result. It also
// waits for the jobs that they made: a directory has one for each file.
func waitMove(ctx context.Context, env *cli.Env, c *cli.Connection, m move, root cli.Location, jobs []client.Job) error {
	real, err := resolve(ctx, c, root.Path)
	if err != nil {
		return err
	}
	w := &waiting{Env: env, c: c, move: m, path: real, jobs: jobs, said: map[string]bool{}}
	p, err := w.settle(ctx, m.name+" "+root.String())
	if err != nil {
		return err
	}
	failed := w.failures(ctx)
	res := p.moveResult
	res.Path, res.Move = jsonname.Name(root.String()), m.name
	if env.Global.JSON {
		err = cli.PrintJSON(env.Out, res)
	} else {
		env.Note("%s: %s (%s) %s", res.Path, cli.CountOf(res.Files, "file"), cli.Size(res.Bytes), past[m.name])
	}
	if res.Left > len(failed) { // more than was reported
		failed = append(failed, fmt.Errorf("%s of %s could not be %s: `moraine job ls --all` shows the "+
			"reasons", cli.CountOf(res.Left, "file"), res.Path, past[m.name]))
	}
	return errors.Join(append(failed, err)...)
}

var past = map[string]string{"flush": "flushed", "stage": "staged", "evict": "evicted"}

// settle waits until every file is where the move brings it, or no job is left that would
// move it.
func (w *waiting) settle(ctx context.Context, title string) (p moveProgress, err error) {
	bar := w.StartBar(title, 0)
	defer func() { bar.Finish(err) }()
	for {
		began := time.Now()
		if p, err = w.look(ctx, bar); err != nil {
			return p, err
		}
		bar.SetTotal(int64(p.total))
		bar.SetDone(int64(p.done))
		if !p.busy {
			return p, nil
		}
		if err = sleep(ctx, max(waitPoll, waitShare*time.Since(began))); err != nil {
			return p, err
		}
	}
}

// look reads the state of every file. It lists jobs first, so the files show what a job has
// done since then.
func (w *waiting) look(ctx context.Context, bar *cli.Bar) (p moveProgress, err error) {
	live := map[moraine.InodeID]client.Job{} // by inode
	for j, err := range w.c.Jobs().List(ctx, false) {
		if err != nil {
			return p, err
		}
		if j.Kind == w.move.kind || j.Kind == client.JobMoveTree && j.Moves == w.move.kind {
			live[j.Inode] = j
		}
	}
	err = w.c.Walk(ctx, w.path, func(_ string, at client.Attr) error {
		job, moving := live[at.Inode()]
		w.complain(bar, job)
		switch {
		case at.IsDir():
			p.busy = p.busy || moving
		case !at.IsRegular():
		case w.move.reached(at):
			p.Files++
			p.Bytes += uint64(at.Size())
			p.total += uint64(at.Size())
			p.done += uint64(at.Size())
		default:
			p.Left++
			p.total += uint64(at.Size())
			p.done += min(job.Done, uint64(at.Size()))
			p.busy = p.busy || moving && !job.Blocked()
		}
		return nil
	})
	return p, err
}

// complain reports, once, why a job is tried again.
func (w *waiting) complain(bar *cli.Bar, j client.Job) {
	if j.Error == "" || w.said[j.Error] {
		return
	}
	w.said[j.Error] = true
	bar.Log(w.Err, fmt.Sprintf("moraine: %s of %s is tried again: %s", j.Kind, j.Subject, strings.ReplaceAll(j.Error, "\n", "; ")))
}

// failures lists the first queued jobs that did not succeed.
func (w *waiting) failures(ctx context.Context) (failed []error) {
	for _, j := range w.jobs {
		ended, err := j, error(nil)
		if j.ID != 0 { // a job without a number ended at once
			ended, err = w.c.Jobs().Get(ctx, j.ID)
		}
		switch {
		case errors.Is(err, moraine.NotFound): // ended long ago
		case err != nil:
			failed = append(failed, err)
		case ended.Blocked():
			failed = append(failed, fmt.Errorf("%s of %s waits for an administrator: %s", w.move.name, cmp.Or(ended.Subject, path.Base(w.path)), ended.Error))
		case ended.State == client.JobFailed || ended.State == client.JobCanceled:
			failed = append(failed, fmt.Errorf("%s of %s %s: %s", w.move.name, cmp.Or(ended.Subject, path.Base(w.path)), ended.State, ended.Error))
		}
	}
	return failed
}

// resolve follows the symbolic links that a path ends in.
func resolve(ctx context.Context, c *cli.Connection, p string) (string, error) {
	for range maxLinks {
		a, err := c.Lstat(ctx, p)
		if err != nil || !a.IsSymlink() {
			return p, err
		}
		if p = path.Join(path.Dir(p), a.Target()); path.IsAbs(a.Target()) {
			p = path.Clean(a.Target())
		}
	}
	return "", &moraine.Error{Op: "resolve", Ref: p, Kind: moraine.InvalidArgument, Err: errors.New("too many symbolic links")}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
