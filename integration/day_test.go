package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// In this file, users create, overwrite, clone, move and remove trees for a day of
// cluster time, on synctest's clock. Meanwhile servers and clients are killed and
// lose their power, and stripes that are mostly dead are rewritten. At the end a
// recount agrees with the counts of usage. After everything is removed nothing is
// left: no inode, no stripe, no tombstone, no unexplained chunk.

// day is a cluster with its users.
type day struct {
	c     *incluster.Cluster
	rng   *rand.Rand // decides which node is killed when
	users []*dayUser
	kills map[string]int
	// busy gets a value as a tree is cloned or removed.
	busy chan struct{}

	mu        sync.Mutex
	counts    map[string]int    // operations of the users
	rewritten map[string]uint64 // stripes chosen for a rewrite, by leader and pass
	packed    map[string]uint64 // and files to pack
}

func runDay(ctx context.Context, seed uint64, length time.Duration) (d *day, err error) {
	d = &day{rng: rand.New(rand.NewPCG(seed, 2)), kills: map[string]int{}, counts: map[string]int{}, rewritten: map[string]uint64{}, packed: map[string]uint64{}, busy: make(chan struct{}, 1)}
	d.c, err = incluster.Start(ctx, incluster.Options{Seed: seed, Chunkservers: 4, SnapshotEntries: 2000, MemTableBytes: testseed.Of[int64](4<<20, 0),
		RewriteEvery: testseed.Of(20*time.Second, time.Minute), PackAfter: testseed.Of(40*time.Second, 3*time.Minute)})
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, d.c.Stop()) }()
	if err := d.c.WaitReady(ctx); err != nil {
		return d, err
	}
	admin, err := d.c.Admin(ctx, "admin")
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	for i := range 3 {
		u := &dayUser{d: d, name: fmt.Sprintf("u%d", i+1), rng: rand.New(rand.NewPCG(seed, uint64(10+i)))}
		attr, err := admin.Mkdir(ctx, "/"+u.name, 0o755)
		if err == nil {
			err = admin.Quotas().Set(ctx, attr.Inode(), 60<<20, 1500)
		}
		if err == nil && i == 2 { // small files are only packed if they would be coded
			err = admin.Policies().Set(ctx, attr.Inode(), client.Policy{Scheme: moraine.Scheme{K: 2, M: 2}})
		}
		if err != nil {
			return d, err
		}
		u.dirs = []string{"/" + u.name}
		d.users = append(d.users, u)
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var crew sync.WaitGroup
	for _, u := range d.users {
		crew.Go(func() { u.work(working) })
	}
	crew.Go(func() { d.noteRewritten(working) })
	err = d.killUntil(ctx, time.Now().Add(length), min(length/10, 10*time.Minute))
	stop()
	crew.Wait()
	if err != nil {
		return d, err
	}
	return d, d.settle(ctx)
}

// killUntil kills servers and restarts them until the day is over. The nodes down
// at the same time nearly always leave a majority, and the bytes: a chunkserver may
// lose what a majority does not have. pause is the longest quiet period.
func (d *day) killUntil(ctx context.Context, end time.Time, pause time.Duration) error {
	for time.Now().Before(end) {
		time.Sleep(10*time.Second + time.Duration(d.rng.Int64N(int64(pause))))
		victim := "m" + strconv.Itoa(1+d.rng.IntN(3))
		how := "leader"
		switch d.rng.IntN(4) {
		case 0:
			if l := d.c.Leader(); l != "" {
				victim = l
			}
		case 1:
			how = "metadata"
		case 2:
			victim, how = "n"+strconv.Itoa(1+d.rng.IntN(4)), "chunkserver"
		default:
			victim, how = "", "all"
		}
		var ids []string
		if victim != "" {
			ids = []string{victim}
		}
		switch d.rng.IntN(4) {
		case 0:
			d.c.Kill(ids...)
		case 1:
			how += " by power"
			d.c.PowerCut(ids...)
		default:
			how += " in a job"
			d.cutBusy(ids)
		}
		d.kills[how]++
		time.Sleep(time.Duration(d.rng.IntN(90)) * time.Second)
		if err := d.c.Restart(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// cutBusy cuts the power of nodes some file operations after a job began, which is
// in the middle of it.
func (d *day) cutBusy(ids []string) {
	select {
	case <-d.busy: // of a finished job
	default:
	}
	select {
	case <-d.busy:
	case <-time.After(2 * time.Minute):
	}
	cut := d.c.PowerCutAfter(1+d.rng.IntN(200), ids...)
	select {
	case <-cut:
	case <-time.After(10 * time.Second):
		d.c.CancelCut()
		d.c.PowerCut(ids...)
	}
}

// noteRewritten records what the passes over mostly dead stripes chose, until ctx
// ends. A new leader counts from zero.
func (d *day) noteRewritten(ctx context.Context) {
	for ctx.Err() == nil {
		admin, err := d.c.Admin(ctx, "watch")
		for err == nil && ctx.Err() == nil {
			time.Sleep(time.Minute)
			err = d.noteLook(ctx, admin.Client)
		}
		if admin != nil {
			admin.Close() //nolint:errcheck // the session may be lost
		}
	}
}

func (d *day) noteLook(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if r := resp.GetCluster().GetRewriting(); err == nil && r != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		look := fmt.Sprint(d.c.Leader(), r.Rounds, r.Looking)
		d.rewritten[look] = max(d.rewritten[look], r.ChosenStripes)
		d.packed[look] = max(d.packed[look], r.ChosenFiles)
	}
	return err
}

// chosen adds up the choices of finished passes: a lower limit of all choices.
func chosen(looks map[string]uint64) (n uint64) {
	for look, chosen := range looks {
		if strings.HasSuffix(look, "false") {
			n += chosen
		}
	}
	return n
}

// working signals that a job begins.
func (d *day) working() {
	select {
	case d.busy <- struct{}{}:
	default:
	}
}

// settle waits until all work has ended, recounts everything, removes it, and waits
// until nothing is left.
func (d *day) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 12*time.Hour)
	defer cancel()
	if err := d.c.Restart(); err != nil {
		return err
	}
	if err := d.c.WaitReady(ctx); err != nil {
		return err
	}
	admin, err := d.c.Admin(ctx, "admin-2") // the session of the first may have expired
	if err != nil {
		return err
	}
	defer admin.Close() //nolint:errcheck
	if err := d.idle(ctx, admin.Client); err != nil {
		return err
	}
	before := map[string]client.Usage{}
	for _, u := range d.users {
		if before[u.name], err = usageOf(ctx, admin.Client, "/"+u.name); err != nil {
			return err
		}
	}
	j, err := admin.Quotas().Recount(ctx)
	if err == nil {
		j, err = admin.Jobs().Wait(ctx, j.ID, nil)
	}
	if err != nil {
		return err
	}
	if j.State != client.JobDone || j.Error != "" {
		return fmt.Errorf("the recount ended %s: %s", j.State, j.Error)
	}
	for _, u := range d.users {
		now, err := usageOf(ctx, admin.Client, "/"+u.name)
		if err != nil {
			return err
		}
		if now.Bytes != before[u.name].Bytes || now.Inodes != before[u.name].Inodes {
			return fmt.Errorf("/%s: %v was counted, %v after the recount", u.name, before[u.name], now)
		}
		seen := map[moraine.InodeID]int64{}
		if err := walk(ctx, admin.Client, "/"+u.name, seen); err != nil {
			return err
		}
		bytes := uint64(0)
		for _, size := range seen {
			bytes += uint64(size)
		}
		if now.Bytes != bytes || now.Inodes != uint64(len(seen)) {
			return fmt.Errorf("/%s: %v is counted, and there are %d bytes and %d inodes", u.name, now, bytes, len(seen))
		}
		if now.Bytes > now.QuotaBytes || now.Inodes > now.QuotaInodes {
			return fmt.Errorf("/%s: %v is past the quota", u.name, now)
		}
		if err := admin.RemoveAll(ctx, "/"+u.name); err != nil {
			return err
		}
	}
	if err := d.c.Check(); err != nil {
		return err
	}
	return d.empty(ctx, admin.Client)
}

func usageOf(ctx context.Context, c *client.Client, path string) (client.Usage, error) {
	attr, err := c.Stat(ctx, path)
	if err != nil {
		return client.Usage{}, err
	}
	u, err := c.Quotas().Usage(ctx, attr.Inode())
	return u.Usage, err
}

// walk finds every inode below a directory, and its size.
func walk(ctx context.Context, c *client.Client, path string, seen map[moraine.InodeID]int64) error {
	for e, err := range c.ReadDir(ctx, path) {
		if err != nil {
			return err
		}
		seen[e.Attr.Inode()] = e.Attr.Size()
		if e.Attr.IsDir() {
			if err := walk(ctx, c, path+"/"+e.Name, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// idle waits until no job is left.
func (d *day) idle(ctx context.Context, c *client.Client) error {
	for {
		left := 0
		for _, err := range c.Jobs().List(ctx, false) {
			if err != nil {
				return err
			}
			left++
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("%d jobs are left: %w", left, ctx.Err())
		}
	}
}

// empty waits until nothing is left of the removed trees.
func (d *day) empty(ctx context.Context, c *client.Client) error {
	for {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		if err != nil {
			return err
		}
		r := resp.GetCluster()
		if r.Inodes == 1 && r.Stripes == 0 && r.PendingBytes == 0 && r.LeakedBytes == 0 && r.LostStripes == 0 && r.RepairQueued == 0 {
			if n, err := d.c.Tombstones(); n > 0 || err != nil {
				return fmt.Errorf("%d tombstones are left, of no bytes that are pending (%v)", n, err)
			}
			return d.c.Check()
		}
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return fmt.Errorf("left: %d inodes, %d stripes (%d lost), %d bytes pending, %d leaked", r.Inodes, r.Stripes, r.LostStripes, r.PendingBytes, r.LeakedBytes)
		}
	}
}

// TestADayOfTrees runs 90 seconds of cluster time; in the long form it runs a day, or
// as many hours as MORAINE_TEST_RUNS says.
func TestADayOfTrees(t *testing.T) {
	seed, length, hours := powerSeed(t), 90*time.Second, testseed.Runs(t, 0, 24)
	if hours > 0 {
		length = time.Duration(hours) * time.Hour
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		d, err := runDay(t.Context(), seed, length)
		t.Logf("seed %d (MORAINE_TEST_SEED repeats it): %s of cluster time, killed %v; users did %v; %d stripes were rewritten, %d files packed",
			seed, time.Since(began).Round(time.Minute), d.kills, d.counts, chosen(d.rewritten), chosen(d.packed))
		require.NoError(t, err)
		if hours > 0 {
			d.requireWork(t, hours)
		}
	})
}

// requireWork checks that the day had enough work. All kinds of operations
// succeeded, more often than they were refused or had an unknown result. All kinds
// of nodes were killed, and stripes were rewritten.
func (d *day) requireWork(t *testing.T, hours int) {
	t.Helper()
	done, not := 0, 0
	for what, n := range d.counts {
		switch what {
		case "over quota", "moved meanwhile", "unknown":
			not += n
		case "killed":
		default:
			done += n
		}
	}
	require.Greater(t, done, 3*not, "of what the users wanted")
	for _, verb := range []string{"create", "change", "overwrite", "mkdir", "clone", "concat", "remove", "rename", "abandon"} {
		require.GreaterOrEqual(t, d.counts[verb], 4*hours, "of %s", verb)
	}
	kills := 0
	for _, n := range d.kills {
		kills += n
	}
	require.GreaterOrEqual(t, kills, 4*hours, "kills")
	require.GreaterOrEqual(t, int(chosen(d.rewritten)), hours, "stripes that were rewritten")
}
