package leases_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
)

// delegating is a client to which directories are delegated.
func delegating() client.Config {
	cfg := cached
	cfg.Delegation = true
	return cfg
}

// putHere makes a file in a directory and renames it to a slot there, in place of an existing one.
func (u *user) putHere(ctx context.Context, dir int, slot string) {
	u.made++
	from := client.Entry{Parent: u.dirs[dir], Name: fmt.Sprint(u.name, u.made)}
	made, err := u.cl.Inodes().Create(ctx, from.Parent, from.Name, client.NodeOptions{Mode: 0o600, Exclusive: true})
	if err != nil {
		return
	}
	e, d := u.begin(fmt.Sprint(dir, slot)), u.begin(fmt.Sprint("dir", dir))
	e.put = true
	err = u.cl.Inodes().Rename(ctx, from, client.Entry{Parent: u.dirs[dir], Name: slot}, client.RenameOptions{})
	if err != nil {
		return
	}
	a, err := u.cl.Inodes().Lookup(ctx, u.dirs[dir], slot)
	if err != nil || a.Inode() != made.Inode() {
		return // it was replaced by then
	}
	e.version = a.ChangeTime().UnixNano()
	u.h.add(e)
	d.version = e.version
	u.h.add(d)
}

// burst is work of one client in one directory, mostly alone there.
func (u *user) burst(ctx context.Context, dir, steps int) {
	for range steps {
		slot := fmt.Sprintf("slot%d", u.rng.IntN(modelSlots))
		switch n := u.rng.IntN(10); {
		case n < 5:
			u.putHere(ctx, dir, slot)
		case n < 6:
			u.emptySlot(ctx, dir, slot)
		default:
			u.peek(ctx, dir, slot)
		}
		time.Sleep(time.Duration(u.rng.IntN(4)) * time.Millisecond)
	}
}

// peek reads a directory in one of several ways.
func (u *user) peek(ctx context.Context, dir int, slot string) {
	switch u.rng.IntN(4) {
	case 0:
		e := u.begin(fmt.Sprint("dir", dir))
		a, err := u.cl.Inodes().Stat(ctx, u.dirs[dir])
		u.saw(e, a, err)
	case 1:
		e := u.begin(fmt.Sprint(dir, slot))
		a, err := u.cl.Stat(ctx, fmt.Sprintf("d%d/%s", dir, slot))
		u.saw(e, a, err)
	case 2:
		e := u.begin(fmt.Sprint(dir, slot))
		a, err := u.cl.Inodes().Lookup(ctx, u.dirs[dir], slot)
		u.saw(e, a, err)
	case 3:
		u.list(ctx, dir)
	}
}

// delegated has clients work in the same directories, one after the other and together, and returns
// the contradictions, and how many changes they made by themselves.
func delegated(t *testing.T, seed uint64, rounds int) (wrong []string, local uint64) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Hour)
		defer cancel()
		c, err := incluster.Start(ctx, incluster.Options{Seed: seed, Chunkservers: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Stop()) }()
		require.NoError(t, c.WaitReady(ctx))
		rng, h := rand.New(rand.NewPCG(seed, 17)), &history{}
		w := work{dirs: rounds/2 + 1, files: 1, in: func(int) int { return 0 }}
		dirs, files := modelTree(t, ctx, c, w)
		var users []*user
		for i, cfg := range []client.Config{delegating(), delegating(), cached} {
			name := fmt.Sprint("u", i)
			cl, err := c.ClientWith(ctx, name, cfg)
			require.NoError(t, err)
			defer cl.Close()
			users = append(users, &user{name: name, h: h, cl: cl.Client, dirs: dirs, files: files, rng: rand.New(rand.NewPCG(seed, uint64(i)))})
		}
		for round := range rounds {
			var wg sync.WaitGroup
			dir, alone, killed := round/2, rng.IntN(3), rng.IntN(6) == 0
			others := rng.IntN(2) > 0
			for i, u := range users {
				if i != alone && !others {
					continue
				}
				wg.Go(func() {
					if i != alone {
						time.Sleep(time.Duration(u.rng.IntN(120)) * time.Millisecond)
						u.burst(ctx, dir, u.rng.IntN(4))
						return
					}
					u.burst(ctx, dir, 40)
				})
			}
			if leader := c.Leader(); killed && leader != "" {
				c.Kill(leader)
				time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
				require.NoError(t, c.Restart(leader))
			}
			wg.Wait()
			time.Sleep(time.Duration(rng.IntN(2)) * 12 * time.Second)
		}
		for _, u := range users {
			require.NoError(t, u.cl.Inodes().Sync(ctx, 0))
		}
		local = users[0].cl.Stats().DelegatedChanges
		require.Zero(t, users[0].cl.Stats().DelegatedLost)
		wrong = h.check()
	})
	return wrong, local
}

// What clients do by themselves in delegated directories, and what others then see of it, is in one
// order that real time does not contradict.
func TestDelegatedAnswersAreLinearizable(t *testing.T) {
	first, n := testseed.First(t), testseed.Runs(t, 2, 200)
	var all uint64
	for seed := first; seed < first+uint64(n); seed++ {
		wrong, local := delegated(t, seed, testseed.Of(30, 100))
		require.Empty(t, wrong, "MORAINE_TEST_SEED=%d", seed)
		all += local
	}
	t.Logf("seeds %d to %d: %d changes in delegated directories", first, first+uint64(n)-1, all)
	require.Greater(t, all, uint64(50*n))
}
