package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
)

// delegating is a client to which directories are delegated.
func delegating() client.Config {
	cfg := config()
	cfg.Delegation = true
	return cfg
}

// delegate lets a client make entries in a directory until it is delegated.
func (c *cluster) delegate(cl *client.Client, dir moraine.InodeID) {
	c.t.Helper()
	was := cl.Stats().DelegatedChanges
	for i := range 100 {
		name := fmt.Sprint("delegate", i)
		_, err := cl.Inodes().Create(c.ctx, dir, name, client.NodeOptions{Exclusive: true})
		require.NoError(c.t, err)
		_, err = cl.Inodes().Remove(c.ctx, dir, name, client.RemoveOptions{})
		require.NoError(c.t, err)
		if cl.Stats().DelegatedChanges > was {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.FailNow(c.t, "the directory is not delegated")
}

// delegateSoon is delegate for a directory that others may have used: it need not succeed.
func (c *cluster) delegateSoon(cl *client.Client, dir moraine.InodeID) {
	for i := range 5 {
		name := fmt.Sprint("delegate", i)
		_, err := cl.Inodes().Create(c.ctx, dir, name, client.NodeOptions{Exclusive: true})
		require.NoError(c.t, err)
		_, err = cl.Inodes().Remove(c.ctx, dir, name, client.RemoveOptions{})
		require.NoError(c.t, err)
		time.Sleep(10 * time.Millisecond)
	}
}

// place is a directory in which a client plays operations.
type place struct {
	ctx context.Context
	in  client.Inodes
	top moraine.InodeID
}

// at returns the directory of a path and the last name.
func (p *place) at(name string) (client.Entry, error) {
	e := client.Entry{Parent: p.top, Name: path.Base(name)}
	for _, step := range strings.Split(path.Dir(name), "/") {
		if step == "." {
			continue
		}
		a, err := p.in.Lookup(p.ctx, e.Parent, step)
		if err != nil {
			return e, err
		}
		e.Parent = a.Inode()
	}
	return e, nil
}

// stat returns the attributes of a path.
func (p *place) stat(name string) (client.Attr, error) {
	if name == "." {
		return p.in.Stat(p.ctx, p.top)
	}
	e, err := p.at(name)
	if err != nil {
		return client.Attr{}, err
	}
	return p.in.Lookup(p.ctx, e.Parent, e.Name)
}

// shown is what two places have in common of attributes.
func shown(a client.Attr, err error) string {
	if err != nil {
		return moraine.KindOf(err).String()
	}
	return fmt.Sprint(a.Type(), " ", a.Mode(), " ", a.UID(), ":", a.GID(), " links ", a.Nlink(), " size ", a.Size(),
		" target ", a.Target(), " rdev ", a.Rdev(), " generation ", a.Generation()&0xff, " level ", a.Level())
}

// names lists a directory.
func (p *place) names(name string) string {
	a, err := p.stat(name)
	if err != nil {
		return moraine.KindOf(err).String()
	}
	var out []string
	for e, err := range p.in.ReadDir(p.ctx, a.Inode()) {
		if err != nil {
			return moraine.KindOf(err).String()
		}
		out = append(out, e.Name+" "+shown(e.Attr, nil))
	}
	return strings.Join(out, "\n")
}

// write writes to a file, at an offset.
func (p *place) write(name string, off int64, b []byte) string {
	a, err := p.stat(name)
	if err != nil {
		return moraine.KindOf(err).String()
	}
	h, err := p.in.OpenHandle(p.ctx, a.Inode(), client.HandleOptions{})
	if err != nil {
		return moraine.KindOf(err).String()
	}
	_, err = h.WriteAt(p.ctx, b, off)
	if cerr := h.Close(p.ctx); err == nil {
		err = cerr
	}
	if err != nil {
		return err.Error()
	}
	return shown(p.stat(name))
}

// play does one random operation, the same in each place for the same numbers, and returns what a
// program sees of it.
func (p *place) play(rng *rand.Rand) string {
	name, other := randomPath(rng), randomPath(rng)
	opts := client.NodeOptions{Mode: rng.Uint32() & 0o7777, UID: rng.Uint32N(3), GID: rng.Uint32N(3), Exclusive: rng.IntN(3) > 0}
	kind, number := rng.IntN(20), rng.Uint32()
	e, err := p.at(name)
	if err != nil {
		return moraine.KindOf(err).String()
	}
	what := fmt.Sprint(kind, " ", name, " ", other, ": ")
	switch kind {
	case 0, 1, 2, 3:
		return what + shown(p.in.Create(p.ctx, e.Parent, e.Name, opts))
	case 4, 5:
		return what + shown(p.in.Mkdir(p.ctx, e.Parent, e.Name, opts))
	case 6:
		return what + shown(p.in.Symlink(p.ctx, e.Parent, e.Name, other, opts))
	case 7:
		return what + shown(p.in.Mknod(p.ctx, e.Parent, e.Name, client.TypeFifo, 0, opts))
	case 8, 9, 10:
		_, err := p.in.Remove(p.ctx, e.Parent, e.Name, client.RemoveOptions{Directory: kind == 10, Keep: kind == 9 && number%4 == 0})
		return what + shown(client.Attr{}, err)
	case 11, 12, 13:
		to, err := p.at(other)
		if err == nil {
			err = p.in.Rename(p.ctx, e, to, client.RenameOptions{NoReplace: number%4 == 0, Exchange: number%8 == 1})
		}
		return what + shown(client.Attr{}, err)
	case 14, 15:
		return what + p.setAttr(name, opts, number)
	case 16, 17:
		return what + p.write(name, int64(number%3)*100, bytesOf(uint64(number), 1+int(number%5000)))
	case 18:
		return what + p.names(path.Dir(name))
	}
	a, err := p.stat(name)
	if err != nil || number%2 == 0 || a.IsDir() {
		return what + shown(a, err)
	}
	to, err := p.at(other)
	if err == nil {
		a, err = p.in.Link(p.ctx, a.Inode(), to.Parent, to.Name)
	}
	return what + shown(a, err)
}

func (p *place) setAttr(name string, opts client.NodeOptions, number uint32) string {
	a, err := p.stat(name)
	if err != nil {
		return moraine.KindOf(err).String()
	}
	var set client.SetAttr
	switch number % 4 {
	case 0:
		set.Mode = &opts.Mode
	case 1:
		set.UID, set.GID = &opts.UID, &opts.GID
	case 2:
		set.ModTime = new(time.Unix(int64(number%100_000), 5))
	case 3:
		set.Size = new(int64(number % 7000))
	}
	return shown(p.in.SetAttr(p.ctx, a.Inode(), set))
}

// randomPath is one of a few paths, so that names are often taken.
func randomPath(rng *rand.Rand) string {
	names := make([]string, 1+rng.IntN(3))
	for i := range names {
		names[i] = string(rune('a' + rng.IntN(4)))
	}
	return strings.Join(names, "/")
}

// tree returns all below a directory, with all attributes.
func (p *place) tree(dir moraine.InodeID, at string) (out []string) {
	a, err := p.in.Stat(p.ctx, dir)
	out = append(out, fmt.Sprint(at, " ", a, err))
	for e, err := range p.in.ReadDir(p.ctx, dir) {
		if err != nil {
			return append(out, err.Error())
		}
		if e.Attr.IsDir() {
			out = append(out, p.tree(e.Attr.Inode(), at+"/"+e.Name)...)
			continue
		}
		a, err := p.in.Stat(p.ctx, e.Attr.Inode())
		out = append(out, fmt.Sprint(at+"/"+e.Name, " ", a, err))
	}
	return out
}

// Operations in a delegated directory have the results that they have in any other, and leave the
// attributes at the service that the client has shown. Some entries are older than the delegation, and in
// the middle the directory is given back, so that all are.
func TestDelegatedOperationsAreLikeOthers(t *testing.T) {
	first, n, local := testseed.First(t), testseed.Runs(t, 4, 200), uint64(0)
	for seed := first; seed < first+uint64(n); seed++ {
		inCluster(t, 3, func(c *cluster) {
			a, b := c.dial("a", delegating()), c.dial("b", uncached())
			defer a.Close()
			defer b.Close()
			one, err := b.Mkdir(c.ctx, "/one", 0o755)
			require.NoError(t, err)
			two, err := b.Mkdir(c.ctx, "/two", 0o755)
			require.NoError(t, err)
			x, y := &place{c.ctx, b.Inodes(), one.Inode()}, &place{c.ctx, b.Inodes(), two.Inode()}
			for step := range 300 {
				if step%150 == 50 {
					require.Equal(t, y.names("."), (&place{c.ctx, b.Inodes(), one.Inode()}).names("."))
					time.Sleep(time.Minute) // the service delegates no directory that another has just wanted
					c.delegate(a, one.Inode())
					x.in = a.Inodes()
				}
				r := rand.New(rand.NewPCG(seed, uint64(step)))
				s := rand.New(rand.NewPCG(seed, uint64(step)))
				time.Sleep(time.Millisecond) // the service counts its own times up where the clock stands
				require.Equal(t, y.play(s), x.play(r), "step %d, MORAINE_TEST_SEED=%d", step, seed)
			}
			mine := x.tree(one.Inode(), "")
			local += a.Stats().DelegatedChanges
			z := &place{c.ctx, b.Inodes(), one.Inode()}
			require.Equal(t, mine, z.tree(one.Inode(), ""), "MORAINE_TEST_SEED=%d", seed)
			require.Zero(t, a.Stats().DelegatedLost)
			require.Equal(t, y.all("."), z.all("."), "MORAINE_TEST_SEED=%d", seed)
		})
	}
	t.Logf("seeds %d to %d: %d changes in delegated directories", first, first+uint64(n)-1, local)
	require.Greater(t, local, uint64(10*n))
}

// all lists a directory and those below it.
func (p *place) all(name string) string {
	out := []string{name + "\n" + p.names(name)}
	a, err := p.stat(name)
	if err != nil {
		return err.Error()
	}
	for e := range p.in.ReadDir(p.ctx, a.Inode()) {
		if e.Attr.IsDir() {
			out = append(out, p.all(path.Join(name, e.Name)))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
