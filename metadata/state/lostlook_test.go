package state_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state/content"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

// longStripes is the number of one-byte extents in each stripe of a long file: more than one
// command inspects.
const longStripes = 250

// saveLong writes a file of many extents in memory: longStripes of each list of devices.
func (c *client) saveLong(name string, stripes ...[]uint32) uint64 {
	c.t.Helper()
	f := c.mkfile(c.root, name)
	for _, devices := range stripes {
		c.appendLong(f, devices)
	}
	return f
}

func (c *client) appendLong(f uint64, devices []uint32) {
	c.t.Helper()
	id := c.grant(f, 1)
	op := &wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_APPEND, Stripes: []*wire.Stripe{c.inRAM(id, 512, devices...)}}
	for n := range uint64(longStripes) {
		op.Extents = append(op.Extents, extent(n, 1, id, 2*n))
	}
	c.ok(c.commit(op))
}

// raisesOnce makes the leader inspect each listed file once and returns the number of entries that
// took.
func (b *bench) raisesOnce() int {
	b.t.Helper()
	ids, _, err := content.Raisable(b.m.View(b.store()), 0, 1000, content.MaxRaised)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(ids) == 0 {
		return 0
	}
	op := &statepb.RaiseLevels{}
	for _, id := range ids {
		op.Inodes = append(op.Inodes, uint64(id))
	}
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_RaiseLevels{RaiseLevels: op}}).Response)
	return 1
}

// TestALostLongFileStaysLost: a file with a lost byte far from its beginning stays lost through all
// other writes, at every inspection by the leader, until that byte is written again.
func TestALostLongFileStaysLost(t *testing.T) {
	b := newCluster(t, 5)
	c := b.open(nil)
	f := c.saveLong("f", []uint32{1, 2}, []uint32{1, 2}, []uint32{3}, []uint32{1, 2})
	b.ok(b.tell(3, 1, allGone))
	c.wantLevel(f, 0)
	lost := fmt.Sprintf("[f [%d %d]]", 2*longStripes, longStripes)
	for range 3 {
		c.appendLong(f, []uint32{4, 5})
		for {
			if have := moraine.Level(c.attr(f).Level); have != 0 {
				t.Fatalf("the file is at level %s, and bytes of it are lost", have)
			}
			if have := fmt.Sprint(c.lostFiles()); have != lost {
				t.Fatalf("lost: %s, want %s", have, lost)
			}
			if b.raisesOnce() == 0 {
				break
			}
		}
		b.check()
	}
	id := c.grant(f, 1)
	c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Stripes: []*wire.Stripe{b.inRAM(id, longStripes, 4, 5)},
		Extents: []*wire.Extent{extent(2*longStripes, longStripes, id, 0)}}))
	c.wantLevel(f, moraine.Memory)
	for device := range uint32(5) {
		b.ok(b.tell(device+1, 1, allHere))
	}
	c.wantLevel(f, moraine.NVMe)
	b.check()
	b.replays()
	b.keepLog("v1-memory-lost-far")
}

// TestLossBehindWhatStaysInMemoryIsFound: the first bytes of a file stay in memory because the
// devices do not report them. The leader still finds a loss behind them, and proposes no entries
// for it while nothing changes. Once back in service, the device has the bytes.
func TestLossBehindWhatStaysInMemoryIsFound(t *testing.T) {
	b := newCluster(t, 4)
	c := b.open(nil)
	f := c.saveLong("f", []uint32{1, 2}, []uint32{1, 2}, []uint32{3}, []uint32{4})
	c.wantLevel(f, moraine.Memory)
	calm := func() {
		t.Helper()
		entries := len(b.entries)
		b.raise()
		if n := len(b.entries) - entries; n != 0 {
			t.Errorf("%d entries for a file of which nothing changed", n)
		}
	}
	calm()
	b.ok(b.tell(4, 1, allHere))
	c.wantLevel(f, moraine.Memory)
	for range 2 {
		c.setState(3, wire.DeviceState_DEVICE_STATE_OUT)
		c.wantLevel(f, 0)
		calm()
		if have, want := fmt.Sprint(c.lostFiles()), fmt.Sprintf("[f [%d %d]]", 2*longStripes, longStripes); have != want {
			t.Fatalf("lost: %s, want %s", have, want)
		}
		b.check()
		c.setState(3, wire.DeviceState_DEVICE_STATE_IN)
		c.wantLevel(f, moraine.Memory)
		calm()
	}
	for device := range uint32(3) {
		b.ok(b.tell(device+1, 1, allHere))
	}
	c.wantLevel(f, moraine.NVMe)
	b.check()
	b.replays()
	b.keepLog("v1-memory-lost-behind")
}

// TestRandomLongMemory checks the properties of TestRandomMemory on files that one command does not
// inspect whole.
func TestRandomLongMemory(t *testing.T) {
	for _, seed := range testseed.Seeds(t, 2, 40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			b := newCluster(t, 5)
			c := b.open(nil)
			rng := rand.New(rand.NewPCG(seed, 2))
			some := func() []uint32 {
				all := []uint32{1, 2, 3, 4, 5}
				rng.Shuffle(5, func(i, j int) { all[i], all[j] = all[j], all[i] })
				return all[:1+rng.IntN(3)]
			}
			files := []uint64{c.saveLong("a", some(), some()), c.saveLong("b", some())}
			for range 60 {
				f, device := files[rng.IntN(2)], uint32(1+rng.IntN(5))
				switch rng.IntN(8) {
				case 0, 1:
					if c.attr(f).Size < 1500 {
						c.appendLong(f, some())
					}
				case 2:
					from := 10 * uint64(rng.IntN(150))
					id := c.grant(f, 1)
					c.ok(c.commit(&wire.Commit{Inode: f, Mode: wire.CommitMode_COMMIT_MODE_OVERLAY, Stripes: []*wire.Stripe{b.inRAM(id, 10, some()...)},
						Extents: []*wire.Extent{extent(from, 10, id, 0)}}))
				case 3:
					c.lay(f, some())
				case 4:
					b.registerHost(fmt.Sprintf("n%d", device), 1)
				case 5:
					b.raisesOnce()
				default:
					b.ok(b.tell(device, b.epochOf(device), func(*wire.SettledChunk) bool { return rng.IntN(4) == 0 }))
				}
				b.check()
			}
			for device := uint32(1); device <= 5; device++ {
				b.ok(b.tell(device, b.epochOf(device), allHere))
			}
			b.raise()
			b.check()
			for _, f := range files {
				c.holdLevel(f)
			}
			b.replays()
		})
	}
}
