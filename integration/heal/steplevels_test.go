package heal_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
)

// saver is the only rank of a run under a policy.
type saver struct {
	*world
	run *ckpt.Run
}

// everyTenth brings every 10th step to nvme, and keeps the last two of the others.
var everyTenth = ckpt.Policy{{Level: moraine.NVMe, Every: 10}, {Level: moraine.Memory, KeepLast: 2}}

func (w *world) saver(p ckpt.Policy) *saver {
	w.t.Helper()
	run, err := ckpt.OpenRun(w.ctx, w.admin.Client, "/runs/a", ckpt.RunOptions{Launch: ckpt.Launch{Name: "l1"}, World: 1, StagingBytes: 64 << 20})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = run.Close(w.ctx) }) // its cluster has ended
	require.NoError(w.t, ckpt.SetPolicy(w.ctx, w.admin.Client, run.ID(), p))
	return &saver{w, run}
}

func contentOf(step uint64) []byte { return noise(byte(step), 300_000) }

// step saves a step, and waits until it is committed at a level.
func (s *saver) step(step uint64, level moraine.Level) ckpt.StepInfo {
	s.t.Helper()
	p, err := s.run.Begin(s.ctx, step, ckpt.BeginOptions{})
	require.NoError(s.t, err)
	require.NoError(s.t, p.AddBlob(s.ctx, "w", contentOf(step)))
	require.NoError(s.t, p.Seal(s.ctx))
	info, err := p.Wait(s.ctx, level)
	require.NoError(s.t, err)
	return info
}

func (s *saver) info(step uint64) ckpt.StepInfo {
	s.t.Helper()
	info, err := ckpt.GetStep(s.ctx, s.admin.Client, client.StepKey{Run: s.run.ID(), Attempt: s.run.Attempt(), Step: step})
	require.NoError(s.t, err)
	return info
}

func (s *saver) latest(level moraine.Level) uint64 {
	s.t.Helper()
	info, err := s.run.Latest(s.ctx, level)
	require.NoError(s.t, err)
	return info.Step
}

// holds reads a step and compares each byte.
func (s *saver) holds(step uint64) {
	s.t.Helper()
	k, err := s.run.Resolve(s.ctx, ckpt.ResolveOptions{Step: step, Exact: true, Level: moraine.Memory})
	require.NoError(s.t, err)
	got, err := k.ReadBlob(s.ctx, 0, "w")
	require.NoError(s.t, err)
	require.True(s.t, bytes.Equal(contentOf(step), got), "step %d has other bytes", step)
	require.NoError(s.t, k.Close())
}

// onDisk counts the chunks that devices have, with those that were removed since.
func (w *world) onDisk() (n int) {
	for i := range 6 {
		n += len(w.records(fmt.Sprintf("n%d", i+1)))
	}
	return n
}

// cost runs a save of a step, and returns how many chunks the devices got.
func (w *world) cost(fn func()) int {
	before := w.onDisk()
	fn()
	time.Sleep(time.Minute) // settled, and retained
	return w.onDisk() - before
}

// TestStepsBetweenIntervalsCostNoDeviceWrite: with a policy of every 10th step to nvme, the steps between are
// committed in memory, read from there, and removed by their rule, and no device gets one of their chunks.
// Every 10th rises by itself. A wait, a pin and a clone bring others to the devices too.
func TestStepsBetweenIntervalsCostNoDeviceWrite(t *testing.T) {
	inWorld(t, incluster.Options{}, func(w *world) {
		s := w.saver(everyTenth)
		whole := s.cost(func() { s.step(10, moraine.Memory) })
		require.NotZero(t, whole)
		require.Equal(t, moraine.NVMe, s.info(10).Level, "it rises by itself")
		require.Zero(t, s.cost(func() {
			for n := uint64(11); n < 16; n++ {
				info := s.step(n, moraine.Memory)
				require.Equal(t, moraine.Memory, info.Level)
				require.True(t, info.StaysInMemory)
				require.Equal(t, moraine.Memory, everyTenth.EndsAt(info))
				require.EqualValues(t, 2, info.Protects)
				s.holds(n)
				time.Sleep(30 * time.Second)
			}
		}), "chunks of steps that stay in memory are on devices")
		require.Equal(t, ckpt.StepDeleted, s.info(13).State)
		require.Equal(t, uint64(15), s.latest(moraine.Memory))
		require.Equal(t, uint64(10), s.latest(moraine.NVMe))
		s.holds(14)
		require.Equal(t, whole, s.cost(func() { s.step(20, moraine.Memory) }), "one of ten goes to the devices")
		require.Equal(t, uint64(20), s.latest(moraine.NVMe))

		require.Equal(t, whole, s.cost(func() {
			info := s.step(21, moraine.NVMe)
			require.Equal(t, moraine.NVMe, info.Level)
			require.False(t, info.StaysInMemory)
		}), "a wait brings a step to the devices, and no other one")
		s.step(22, moraine.Memory)
		require.Equal(t, whole, s.cost(func() {
			_, err := s.run.Pin(w.ctx, ckpt.StepRef{Attempt: s.run.Attempt(), Step: 22}, true)
			require.NoError(t, err)
		}), "a pin does too")
		require.Equal(t, moraine.NVMe, s.info(22).Level)

		s.step(23, moraine.Memory)
		part, err := w.admin.Stat(w.ctx, "/runs/a/attempt-1/step-23/rank-00000-of-00001.w.blob")
		require.NoError(t, err)
		_, err = w.admin.CloneFile(w.ctx, part.Inode(), "/clone", client.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, w.admin.Inodes().WaitNVMe(w.ctx, w.inode("/clone")), "a clone may be synced")
		s.step(24, moraine.NVMe)
		s.step(30, moraine.NVMe)
		s.step(31, moraine.Memory)
		s.step(32, moraine.Memory)
		w.until("step 23 is removed", func() bool { return s.info(23).State == ckpt.StepDeleted })
		w.files["/clone"] = contentOf(23)
		w.readAll()
	})
}

// TestAStepInMemoryAndItsHosts: a step that stays in memory survives m killed hosts, and hosts that stop
// in order. It is lost with more, and the run falls back to the newest step at nvme.
func TestAStepInMemoryAndItsHosts(t *testing.T) {
	for _, row := range []struct {
		name  string
		end   func(w *world, nodes []string)
		nodes []string
		then  moraine.Level // of the step; 0: it is lost
		spare int           // additional hosts
	}{
		{"m are killed", killed, []string{"n1", "n2"}, moraine.Memory, 0},
		{"m are killed, and stay away", goneForGood, []string{"n1", "n2"}, moraine.Memory, 2},
		{"all are stopped", stopped, []string{"n1", "n2", "n3", "n4", "n5", "n6"}, moraine.NVMe, 0},
		{"m+1 are killed", killed, []string{"n1", "n2", "n3"}, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			inWorld(t, incluster.Options{Chunkservers: 6 + row.spare, RepairGrace: 20 * time.Second}, func(w *world) {
				s := w.saver(everyTenth)
				s.step(10, moraine.NVMe)
				s.step(11, moraine.Memory)
				s.step(12, moraine.Memory)
				time.Sleep(time.Minute)
				require.Equal(t, moraine.Memory, s.info(12).Level)
				row.end(w, row.nodes)
				if row.then > 0 {
					s.holds(11)
					s.holds(12)
					time.Sleep(2 * time.Minute)
					w.sound()
					s.holds(12)
					require.Equal(t, row.then, s.info(12).Level)
					require.Equal(t, uint64(12), s.latest(moraine.Memory))
					return
				}
				w.until("step 12 is lost", func() bool { return s.info(12).State == ckpt.StepLost })
				require.Equal(t, uint64(10), s.latest(moraine.Memory))
				s.holds(10)
			})
		})
	}
}

// chunksInMemory counts the chunks in the memory of all hosts.
func (w *world) chunksInMemory() (n int64) {
	for i := range 6 {
		n += w.InUse(fmt.Sprintf("n%d", i+1))["chunks kept in memory"]
	}
	return n
}

// TestARemovedStepGivesItsMemoryBack: with a policy that keeps the last two steps in memory, the hosts never have
// many more, although dead chunks wait for an hour, and for backups a day. No device gets a chunk of the others. A
// reader keeps its step, and the memory comes back when the reader ends.
func TestARemovedStepGivesItsMemoryBack(t *testing.T) {
	inWorld(t, incluster.Options{Grace: time.Hour, BackupHorizon: 24 * time.Hour}, func(w *world) {
		s := w.saver(everyTenth)
		s.step(10, moraine.NVMe)
		time.Sleep(time.Minute)
		before := w.chunksInMemory()
		s.step(11, moraine.Memory)
		each := w.chunksInMemory() - before
		require.NotZero(t, each)
		reader, err := s.run.Resolve(w.ctx, ckpt.ResolveOptions{Step: 11, Exact: true, Level: moraine.Memory})
		require.NoError(t, err)
		require.Zero(t, s.cost(func() {
			for n := uint64(12); n < 20; n++ {
				s.step(n, moraine.Memory)
				time.Sleep(20 * time.Second)
				require.LessOrEqual(t, w.chunksInMemory(), before+4*each, "after step %d", n)
			}
		}), "chunks of steps that stay in memory are on devices")
		require.Equal(t, before+3*each, w.chunksInMemory(), "the last two, and the one that is read")
		got, err := reader.ReadBlob(w.ctx, 0, "w")
		require.NoError(t, err)
		require.True(t, bytes.Equal(contentOf(11), got))
		require.NoError(t, reader.Close())
		w.until("step 11 is removed", func() bool { return s.info(11).State == ckpt.StepDeleted })
		time.Sleep(20 * time.Second)
		require.Equal(t, before+2*each, w.chunksInMemory(), "the last two")
		s.holds(18)
		s.holds(19)
	})
}
