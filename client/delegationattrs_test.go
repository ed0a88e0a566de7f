package client_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/testseed"
)

// playHere does one random operation in a directory whose queue may be long: most are changes of its
// attributes, or of its names.
func (p *place) playHere(rng *rand.Rand, step int) error {
	name := string(rune('a' + rng.IntN(5)))
	opts := client.NodeOptions{Mode: rng.Uint32() & 0o7777, GID: rng.Uint32N(3), Exclusive: true}
	var err error
	switch rng.IntN(9) {
	case 0:
		_, err = p.in.SetAttr(p.ctx, p.top, client.SetAttr{ModTime: new(time.Unix(int64(step), 5))})
	case 1:
		_, err = p.in.SetAttr(p.ctx, p.top, client.SetAttr{Mode: &opts.Mode})
	case 2:
		_, err = p.in.SetAttr(p.ctx, p.top, client.SetAttr{GID: &opts.GID})
	case 3, 4:
		_, err = p.in.Create(p.ctx, p.top, name, opts)
	case 5:
		_, err = p.in.Mkdir(p.ctx, p.top, name, opts)
	case 6:
		_, err = p.in.Remove(p.ctx, p.top, name, client.RemoveOptions{Directory: step%2 == 0})
	case 7:
		err = p.in.Rename(p.ctx, client.Entry{Parent: p.top, Name: name}, client.Entry{Parent: p.top, Name: "z" + name}, client.RenameOptions{})
	case 8: // content goes with the create of the file
		if _, err = p.in.Create(p.ctx, p.top, name, opts); err == nil && step%2 == 0 {
			_, err = p.in.SetAttr(p.ctx, p.top, client.SetAttr{ModTime: new(time.Unix(int64(step), 5))})
		}
		if err == nil {
			p.write(name, 0, bytesOf(uint64(step), 100))
		}
	}
	switch moraine.KindOf(err) {
	case moraine.NotFound, moraine.Exists, moraine.IsDirectory, moraine.NotDirectory:
		return nil
	}
	return err
}

// Changes of a directory's own attributes keep their place between the changes of its names.
func TestAttributesOfADelegatedDirectoryKeepTheirPlace(t *testing.T) {
	first, n := testseed.First(t), testseed.Runs(t, 40, 2000)
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		local := a.Stats().DelegatedChanges
		for seed := first; seed < first+uint64(n); seed++ {
			rng := rand.New(rand.NewPCG(seed, 1))
			sub, err := a.Inodes().Mkdir(c.ctx, dir, fmt.Sprint("sub", seed), client.NodeOptions{Mode: 0o755})
			require.NoError(t, err)
			x := &place{c.ctx, a.Inodes(), sub.Inode()}
			for step := range 12 {
				time.Sleep(10 * time.Microsecond)
				require.NoError(t, x.playHere(rng, step), "step %d, MORAINE_TEST_SEED=%d", step, seed)
			}
			mine := x.tree(sub.Inode(), "")
			require.NoError(t, a.Inodes().Sync(c.ctx, dir))
			z := &place{c.ctx, b.Inodes(), sub.Inode()}
			require.Equal(t, mine, z.tree(sub.Inode(), ""), "MORAINE_TEST_SEED=%d", seed)
		}
		require.Zero(t, a.Stats().DelegatedLost)
		require.Greater(t, a.Stats().DelegatedChanges-local, uint64(5*n))
	})
}

// What a program sets on a directory that the client has just made is there afterwards.
func TestExtendedAttributesOfADelegatedDirectory(t *testing.T) {
	inDelegated(t, func(c *cluster, a, b *client.Client, dir moraine.InodeID) {
		for _, name := range []string{"user.x", "system.posix_acl_default"} {
			sub, err := a.Inodes().Mkdir(c.ctx, dir, name, client.NodeOptions{Mode: 0o755})
			require.NoError(t, err)
			before, err := a.Xattrs().List(c.ctx, sub.Inode())
			require.NoError(t, err)
			require.Empty(t, before)
			value := []byte("value")
			if name != "user.x" {
				value = defaultACL()
			}
			require.NoError(t, a.Xattrs().Set(c.ctx, sub.Inode(), name, value, client.XattrAny))
			for _, cl := range []*client.Client{a, b, a} {
				got, err := cl.Xattrs().Get(c.ctx, sub.Inode(), name)
				require.NoError(t, err, name)
				require.Equal(t, value, got)
			}
		}
	})
}

// defaultACL is a list with the entries of a mode only.
func defaultACL() []byte {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct{ tag, bits uint16 }{{0x01, 7}, {0x04, 5}, {0x20, 1}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.bits)
		list = binary.LittleEndian.AppendUint32(list, ^uint32(0))
	}
	return list
}
