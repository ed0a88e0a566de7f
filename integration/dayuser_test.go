package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// dayUser works below a directory of its own, with a quota.
type dayUser struct {
	d    *day
	name string
	rng  *rand.Rand
	dirs []string // that it made and did not remove
	n    int
	full bool // its quota has refused an operation since it last freed space
}

// work runs until ctx ends, with one client after the other. The result of a failed
// operation is unknown, and never checked.
func (u *dayUser) work(ctx context.Context) {
	for ctx.Err() == nil {
		// An overwritten file has one stripe: otherwise its stripes die one by one.
		c, err := u.d.c.ClientWith(ctx, u.name, client.Config{ChunkBytes: 256 << 10})
		if err != nil {
			time.Sleep(time.Second)
			continue
		}
		for err == nil || errors.Is(err, moraine.QuotaExceeded) || errors.Is(err, moraine.NotFound) || errors.Is(err, moraine.Exists) {
			if u.rng.IntN(60) == 0 || ctx.Err() != nil {
				break
			}
			err = u.step(ctx, c.Client)
			time.Sleep(time.Duration(u.rng.IntN(20_000)) * time.Millisecond)
		}
		if u.rng.IntN(3) == 0 {
			u.did("killed")
			c.Kill()
		} else {
			c.Close() //nolint:errcheck // the session may be lost
		}
	}
}

func (u *dayUser) did(what string) {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	u.d.counts[what]++
}

func (u *dayUser) fresh() string {
	u.n++
	return fmt.Sprintf("x%05d", u.n)
}

func (u *dayUser) dir() string { return u.dirs[u.rng.IntN(len(u.dirs))] }

// step performs one operation.
func (u *dayUser) step(ctx context.Context, c *client.Client) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	what, do := u.choose()
	err = do(ctx, c)
	u.full = errors.Is(err, moraine.QuotaExceeded)
	switch {
	case err == nil:
		u.did(what)
	case u.full:
		u.did("over quota")
	case errors.Is(err, moraine.NotFound) || errors.Is(err, moraine.Exists):
		u.did("moved meanwhile") // because of an operation with an unknown result
	default:
		u.did("unknown")
	}
	return err
}

// choose draws the next operation. A user whose quota is full first removes
// something.
func (u *dayUser) choose() (what string, do func(context.Context, *client.Client) error) {
	n := u.rng.IntN(100)
	switch {
	case u.full && (len(u.dirs) == 1 || n < 30):
		return "tidy", u.tidy
	case u.full:
		return "remove", u.remove
	case n < 28:
		return "create", u.create
	case n < 38:
		return "change", u.change
	case n < 48:
		return "overwrite", u.overwrite
	case n < 58:
		return "mkdir", u.mkdir
	case n < 66:
		return "clone", u.clone
	case n < 70:
		return "concat", u.concat
	case n < 82 && len(u.dirs) > 1:
		return "remove", u.remove
	case n < 92 && len(u.dirs) > 1:
		return "rename", u.rename
	}
	return "abandon", u.abandon
}

func (u *dayUser) mkdir(ctx context.Context, c *client.Client) error {
	name := u.dir() + "/" + u.fresh()
	_, err := c.Mkdir(ctx, name, 0o755)
	if err == nil {
		u.dirs = append(u.dirs, name)
	}
	return err
}

// below reports whether a directory is another one, or below it.
func below(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// other draws a directory that is not the user's first one.
func (u *dayUser) other() string { return u.dirs[1+u.rng.IntN(len(u.dirs)-1)] }

// forget treats a directory, and everything below it, as removed.
func (u *dayUser) forget(dir string) {
	u.dirs = slices.DeleteFunc(u.dirs, func(d string) bool { return below(d, dir) })
}

func (u *dayUser) remove(ctx context.Context, c *client.Client) error {
	name := u.other()
	u.forget(name)
	u.d.working()
	return c.RemoveAll(ctx, name)
}

// tidy removes half the files, and the unknown trees, in its first directory. All
// concatenations are there, and clones whose answer was lost.
func (u *dayUser) tidy(ctx context.Context, c *client.Client) error {
	for e, err := range c.ReadDir(ctx, u.dirs[0]) {
		if err != nil {
			return err
		}
		name := u.dirs[0] + "/" + e.Name
		if slices.Contains(u.dirs, name) || u.rng.IntN(2) == 0 {
			continue
		}
		if err := c.RemoveAll(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (u *dayUser) rename(ctx context.Context, c *client.Client) error {
	old, name := u.other(), u.dirs[0]+"/"+u.fresh()
	err := c.Rename(ctx, old, name, client.RenameOptions{})
	if err == nil {
		for i, d := range u.dirs {
			if below(d, old) {
				u.dirs[i] = name + strings.TrimPrefix(d, old)
			}
		}
	}
	return err
}

// abandon makes a file that never gets a name.
func (u *dayUser) abandon(ctx context.Context, c *client.Client) error {
	f, err := c.Create(ctx, u.dir()+"/"+u.fresh(), client.CreateOptions{})
	if err == nil {
		_, err = f.Write(make([]byte, u.rng.IntN(300_000)))
		f.Abort()
	}
	return err
}

// create makes a file; three of four are small.
func (u *dayUser) create(ctx context.Context, c *client.Client) error {
	most := 40_000
	if u.rng.IntN(4) == 0 {
		most = 400_000
	}
	return u.write(ctx, c, u.dir()+"/"+u.fresh(), u.rng.IntN(most))
}

func (u *dayUser) write(ctx context.Context, c *client.Client, name string, size int) error {
	f, err := c.Create(ctx, name, client.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err = f.Write(make([]byte, size)); err == nil {
		_, err = f.Commit(ctx)
	}
	if err != nil {
		f.Abort()
	}
	return err
}

// overwrite makes a file and overwrites most of it, so that its first stripe is
// mostly dead.
func (u *dayUser) overwrite(ctx context.Context, c *client.Client) error {
	name, size := u.dir()+"/"+u.fresh(), 100_000+u.rng.IntN(150_000)
	if err := u.write(ctx, c, name, size); err != nil {
		return err
	}
	a, err := c.Stat(ctx, name)
	if err != nil {
		return err
	}
	h, err := c.Inodes().OpenHandle(ctx, a.Inode(), client.HandleOptions{})
	if err != nil {
		return err
	}
	_, err = h.WriteAt(ctx, make([]byte, size*9/10), int64(u.rng.IntN(size/10)))
	return errors.Join(err, h.Close(ctx))
}

// change changes an existing file in place. It makes it longer or shorter, moves it
// to another name in another directory, removes its name, or overwrites it.
func (u *dayUser) change(ctx context.Context, c *client.Client) error {
	dir := u.dir()
	var file client.DirEntry // the zero value: none yet
	for e, err := range c.ReadDir(ctx, dir) {
		if err != nil {
			return err
		}
		if e.Attr.IsRegular() && (file.Name == "" || u.rng.IntN(3) == 0) {
			file = e
		}
	}
	if file.Name == "" {
		return nil
	}
	inode := file.Attr.Inode()
	switch u.rng.IntN(4) {
	case 0:
		return c.Remove(ctx, dir+"/"+file.Name)
	case 1:
		to, err := c.Stat(ctx, u.dir())
		if err == nil {
			_, err = c.Inodes().Link(ctx, inode, to.Inode(), u.fresh())
		}
		return err
	case 2:
		_, err := c.SetAttr(ctx, dir+"/"+file.Name, client.SetAttr{Size: new(u.rng.Int64N(400_000))})
		return err
	}
	h, err := c.Inodes().OpenHandle(ctx, inode, client.HandleOptions{})
	if err != nil {
		return err
	}
	_, err = h.WriteAt(ctx, make([]byte, u.rng.IntN(100_000)), u.rng.Int64N(400_000))
	return errors.Join(err, h.Close(ctx))
}

// clone clones one of the directories to another one. It then waits for the clone,
// cancels it (only administrators may) or leaves it alone.
func (u *dayUser) clone(ctx context.Context, c *client.Client) error {
	name := u.dirs[0] + "/" + u.fresh()
	u.d.working()
	j, err := c.Jobs().CloneTree(ctx, u.dir(), name)
	if err != nil {
		return err
	}
	u.dirs = append(u.dirs, name)
	if u.rng.IntN(3) == 0 {
		return nil
	}
	_, err = c.Jobs().Wait(ctx, j.ID, nil)
	return err
}

// concat makes a file of many ranges of others in a directory, and sometimes
// consumes the directory.
func (u *dayUser) concat(ctx context.Context, c *client.Client) error {
	at := u.rng.IntN(len(u.dirs))
	dir, name := u.dirs[at], u.dirs[0]+"/"+u.fresh()
	parent, err := c.Stat(ctx, dir)
	if err != nil {
		return err
	}
	var files []client.InodeRange
	for e, err := range c.ReadDir(ctx, dir) {
		if err != nil {
			return err
		}
		if e.Attr.IsRegular() && e.Attr.Size() > 0 {
			files = append(files, client.InodeRange{Inode: e.Attr.Inode(), Length: int64(min(e.Attr.Size(), 10_000))})
		}
	}
	if len(files) == 0 {
		return nil
	}
	var srcs []client.InodeRange
	for range 1 + u.rng.IntN(1200) {
		srcs = append(srcs, files[u.rng.IntN(len(files))])
	}
	u.d.working()
	if at == 0 || u.rng.IntN(3) > 0 {
		_, err = c.Concat(ctx, name, srcs, client.CreateOptions{})
		return err
	}
	u.forget(dir)
	_, _, err = c.ConcatParts(ctx, name, srcs, parent.Inode(), client.CreateOptions{})
	return err
}
