package agent

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine"
)

func newTestPool(t *testing.T, limit int64) *pool {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "moraine-pool-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	p, err := newPool(dir, limit)
	require.NoError(t, err)
	return p
}

// TestTakeWaitsForASlotThatIsBeingMade: while another rank gets the last memory, nobody has it yet.
// A take that finds no room then waits, as it does once the other rank has it.
func TestTakeWaitsForASlotThatIsBeingMade(t *testing.T) {
	p := newTestPool(t, hugePage)
	has := make(chan bool, 1)
	has <- false
	spare := func() (freed, more bool) {
		more = <-has
		has <- more
		return false, more
	}
	first, err := p.take(t.Context(), want{uid: 1, bytes: 1, wait: true}, spare)
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		s, err := p.take(t.Context(), want{uid: 1, bytes: 1, wait: true}, spare)
		if err == nil {
			p.placed()
			p.discard(s)
		}
		got <- err
	}()
	select {
	case err := <-got:
		require.NoError(t, err)
		t.Fatal("it did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	<-has
	has <- true
	p.placed()
	p.put(first)
	require.NoError(t, <-got)
	<-has
	has <- false
	require.Zero(t, p.inUse())
	s, err := p.take(t.Context(), want{uid: 1, bytes: 1, wait: true}, spare)
	require.NoError(t, err)
	p.placed()
	_, err = p.take(t.Context(), want{uid: 1, bytes: 1, wait: true}, spare)
	require.ErrorIs(t, err, moraine.NoSpace, "nothing will be returned")
	p.discard(s)
}

// TestSlotsFitIntoTheirTmpfs: a limit past the size of the tmpfs is lowered, and leaves room for
// manifests.
func TestSlotsFitIntoTheirTmpfs(t *testing.T) {
	require.Equal(t, int64(62<<20), slotRoom(&unix.Statfs_t{Blocks: 16 << 10, Bsize: 4096}))
	require.Equal(t, int64(math.MaxInt64), slotRoom(&unix.Statfs_t{Bsize: 4096}))
	p := newTestPool(t, math.MaxInt64)
	require.Less(t, p.limit, int64(math.MaxInt64))
	_, err := p.take(t.Context(), want{uid: 1, bytes: math.MaxInt64 - 1, wait: true}, nil)
	require.ErrorIs(t, err, moraine.NoSpace)
}

// TestASlotThatWasCutIsNotGivenOutAgain: whoever wrote to it would end.
func TestASlotThatWasCutIsNotGivenOutAgain(t *testing.T) {
	p := newTestPool(t, 2*hugePage)
	s, err := p.take(t.Context(), want{uid: 1, bytes: 1, wait: true}, nil)
	require.NoError(t, err)
	p.placed()
	require.NoError(t, s.file.Truncate(0))
	p.put(s)
	again, err := p.take(t.Context(), want{uid: 1, bytes: 1, wait: true}, nil)
	require.NoError(t, err)
	p.placed()
	require.NotEqual(t, s.name, again.name)
	require.Equal(t, int64(hugePage), p.inUse())
	p.discard(again)
}

// TestAFreeSlotThatMakesRoomGivesItsPagesBack: the trainer that had it last keeps it mapped, and the
// memory of the node is for the new slot all the same.
func TestAFreeSlotThatMakesRoomGivesItsPagesBack(t *testing.T) {
	p := newTestPool(t, 2*hugePage)
	spare := func() (freed, more bool) { return false, false }
	first, err := p.take(t.Context(), want{uid: 1, bytes: 1}, spare)
	require.NoError(t, err)
	p.placed()
	trainer, err := os.Open(first.file.Name())
	require.NoError(t, err)
	defer trainer.Close()
	require.Positive(t, blocks(t, trainer))
	p.put(first)

	second, err := p.take(t.Context(), want{uid: 1, bytes: 2 * hugePage}, spare)
	require.NoError(t, err)
	p.placed()
	require.Zero(t, blocks(t, trainer))
	p.discard(second)
}

// blocks returns how many blocks of memory a file has.
func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &st))
	return st.Blocks
}

// TestAUserAboveItsShareLetsOthersGoFirst: what becomes free goes to the user who has less than a
// share, however many callers of the other wait.
func TestAUserAboveItsShareLetsOthersGoFirst(t *testing.T) {
	const slots = 4
	p := newTestPool(t, slots*hugePage)
	waits := func() (freed, more bool) { return false, true }
	var all []*slot
	for range slots {
		s, err := p.take(t.Context(), want{uid: 1, bytes: 1}, waits)
		require.NoError(t, err)
		p.placed()
		all = append(all, s)
	}
	first := make(chan uint32, 20)
	take := func(uid uint32) {
		s, err := p.take(t.Context(), want{uid: uid, bytes: 1, wait: true}, waits)
		if err != nil {
			return // the test has ended
		}
		first <- uid
		p.placed()
		p.discard(s)
	}
	for range 10 {
		go take(1)
	}
	go take(2)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiting[1]) == 10 && len(p.waiting[2]) == 1
	}, time.Minute, time.Millisecond)
	p.discard(all[0])
	require.Equal(t, uint32(2), <-first)
	for range 10 {
		require.Equal(t, uint32(1), <-first, "nobody else waits any more")
	}
	for _, s := range all[1:] {
		p.discard(s)
	}
}

// TestUsersDoNotWaitForEachOther: of users that want more than their shares, or as much as each other,
// one always goes on.
func TestUsersDoNotWaitForEachOther(t *testing.T) {
	const part = 3 * hugePage
	p := newTestPool(t, 20*hugePage)
	waits := func() (freed, more bool) { return false, true }
	take := func(uid uint32, n int64) <-chan *slot {
		got := make(chan *slot, 1)
		go func() {
			s, err := p.take(t.Context(), want{uid: uid, bytes: n, wait: true}, waits)
			if err != nil {
				return // the test has ended
			}
			p.placed()
			got <- s
		}()
		return got
	}
	nobody := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiting) == 0 }
	waiting := func(uids ...uint32) {
		t.Helper()
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, uid := range uids {
				if len(p.waiting[uid]) == 0 {
					return false
				}
			}
			return true
		}, time.Minute, time.Millisecond)
	}
	var one, two []*slot
	for range 3 {
		one = append(one, <-take(1, part))
		two = append(two, <-take(2, part))
	}
	require.True(t, nobody())

	// Each has 9 of 20 and wants 3 more, with a share of 10.
	first, second := take(1, part), take(2, part)
	waiting(1, 2)
	p.put(one[0])
	one[0] = <-first
	p.put(two[0])
	two[0] = <-second

	// One wants more than its share: the other does not wait for that.
	for _, s := range two {
		p.discard(s)
	}
	large := take(2, 12*hugePage)
	waiting(2)
	one = append(one, <-take(1, part))
	for _, s := range one {
		p.discard(s)
	}
	p.discard(<-large)
	require.Zero(t, p.inUse())
}
