package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/transport/wire"
)

// This file has users create, clone, move and remove trees for a day of cluster
// time, on synctest's clock, while servers and clients are killed and lose their
// power. At the end the counts of usage are what a recount finds; and once
// everything is removed nothing is left: no inode, no stripe, no tombstone, no
// chunk that nothing explains.

// day is a cluster with its users.
type day struct {
	c     *incluster.Cluster
	rng   *rand.Rand // of who is killed when
	users []*dayUser
	kills map[string]int
	// busy gets a value as a tree is cloned or removed.
	busy chan struct{}

	mu     sync.Mutex
	counts map[string]int // of what the users did
}

// dayUser works below a directory of its own, with a quota.
type dayUser struct {
	d    *day
	name string
	rng  *rand.Rand
	dirs []string // that it made, and did not remove
	n    int
}

func runDay(ctx context.Context, seed uint64, length time.Duration) (d *day, err error) {
	d = &day{rng: rand.New(rand.NewPCG(seed, 2)), kills: map[string]int{}, counts: map[string]int{}, busy: make(chan struct{}, 1)}
	d.c, err = incluster.Start(ctx, incluster.Options{Seed: seed, Chunkservers: 4, SnapshotEntries: 2000})
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
			err = admin.SetQuota(ctx, moraine.InodeID(attr.Inode), 6<<20, 150)
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
	err = d.killUntil(ctx, time.Now().Add(length), min(length/10, 10*time.Minute))
	stop()
	crew.Wait()
	if err != nil {
		return d, err
	}
	return d, d.settle(ctx, admin)
}

// killUntil kills servers, and brings them back, until the day is over. What is
// down at once leaves a majority, and the bytes, nearly always: a chunkserver may
// lose what a majority has not. pause is the longest that nothing happens.
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

// cutBusy takes the power of nodes some file operations after a job began, which
// is in the middle of it.
func (d *day) cutBusy(ids []string) {
	select {
	case <-d.busy: // of a job that is over
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

// working tells that a job begins.
func (d *day) working() {
	select {
	case d.busy <- struct{}{}:
	default:
	}
}

// work goes on until ctx ends, with one client after the other: what fails is
// not known to have been done, and never asked about.
func (u *dayUser) work(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := u.d.c.Client(ctx, u.name)
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

// step does one thing.
func (u *dayUser) step(ctx context.Context, c *client.Client) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	what := "create"
	switch n := u.rng.IntN(100); {
	case n < 35:
		err = u.create(ctx, c)
	case n < 45:
		what = "change"
		err = u.change(ctx, c)
	case n < 55:
		what = "mkdir"
		name := u.dir() + "/" + u.fresh()
		if _, err = c.Mkdir(ctx, name, 0o755); err == nil {
			u.dirs = append(u.dirs, name)
		}
	case n < 66:
		what = "clone"
		err = u.clone(ctx, c)
	case n < 70:
		what = "concat"
		err = u.concat(ctx, c)
	case n < 85 && len(u.dirs) > 1:
		what = "remove"
		at := 1 + u.rng.IntN(len(u.dirs)-1)
		name := u.dirs[at]
		u.dirs = slices.DeleteFunc(u.dirs, func(d string) bool { return d == name || len(d) > len(name) && d[:len(name)+1] == name+"/" })
		u.d.working()
		err = c.RemoveAll(ctx, name)
	case n < 92 && len(u.dirs) > 1:
		what = "rename"
		at := 1 + u.rng.IntN(len(u.dirs)-1)
		name := u.dirs[0] + "/" + u.fresh()
		if err = c.Rename(ctx, u.dirs[at], name, client.RenameOptions{}); err == nil {
			u.dirs[at] = name
		}
	default:
		what = "abandon" // a file that never gets a name
		var f *client.File
		if f, err = c.Create(ctx, u.dir()+"/"+u.fresh(), client.CreateOptions{}); err == nil {
			_, err = f.Write(make([]byte, u.rng.IntN(300_000)))
			f.Abort()
		}
	}
	switch {
	case err == nil:
		u.did(what)
	case errors.Is(err, moraine.QuotaExceeded):
		u.did("over quota")
	default:
		u.did("unknown")
	}
	return err
}

func (u *dayUser) create(ctx context.Context, c *client.Client) error {
	f, err := c.Create(ctx, u.dir()+"/"+u.fresh(), client.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err = f.Write(make([]byte, u.rng.IntN(400_000))); err == nil {
		_, err = f.Commit(ctx)
	}
	if err != nil {
		f.Abort()
	}
	return err
}

// change changes a file that is there, in place: it gets longer or shorter, or
// another name in another directory, loses its name, or is written over.
func (u *dayUser) change(ctx context.Context, c *client.Client) error {
	dir := u.dir()
	var file *wire.DirEntry
	for e, err := range c.ReadDir(ctx, dir) {
		if err != nil {
			return err
		}
		if e.Attr.Type == wire.FileType_FILE_TYPE_REGULAR && (file == nil || u.rng.IntN(3) == 0) {
			file = e
		}
	}
	if file == nil {
		return nil
	}
	inode := moraine.InodeID(file.Attr.Inode)
	switch u.rng.IntN(4) {
	case 0:
		return c.Remove(ctx, dir+"/"+file.Name)
	case 1:
		to, err := c.Stat(ctx, u.dir())
		if err == nil {
			_, err = c.Link(ctx, inode, moraine.InodeID(to.Inode), u.fresh())
		}
		return err
	case 2:
		_, err := c.SetAttr(ctx, dir+"/"+file.Name, &wire.SetAttr{Valid: uint32(wire.SetAttrField_SET_ATTR_SIZE), Size: u.rng.Uint64N(400_000)})
		return err
	}
	h, err := c.OpenHandle(ctx, inode, client.HandleOptions{})
	if err != nil {
		return err
	}
	_, err = h.WriteAt(ctx, make([]byte, u.rng.IntN(100_000)), u.rng.Int64N(400_000))
	return errors.Join(err, h.Close(ctx))
}

// clone clones one of the directories to another one, and waits for it, cancels
// it (only administrators may) or leaves it alone.
func (u *dayUser) clone(ctx context.Context, c *client.Client) error {
	name := u.dirs[0] + "/" + u.fresh()
	u.d.working()
	j, err := c.CloneTree(ctx, u.dir(), name)
	if err != nil {
		return err
	}
	u.dirs = append(u.dirs, name)
	if u.rng.IntN(3) == 0 {
		return nil
	}
	_, err = c.WaitJob(ctx, moraine.JobID(j.Id), nil)
	return err
}

// concat makes a file of many ranges of others of a directory, and sometimes lets
// the directory go with it.
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
		if e.Attr.Type == wire.FileType_FILE_TYPE_REGULAR {
			files = append(files, client.InodeRange{Inode: moraine.InodeID(e.Attr.Inode)})
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
	u.dirs = slices.DeleteFunc(u.dirs, func(d string) bool { return d == dir || len(d) > len(dir) && d[:len(dir)+1] == dir+"/" })
	_, _, err = c.ConcatParts(ctx, name, srcs, moraine.InodeID(parent.Inode), client.CreateOptions{})
	return err
}

// settle waits until nothing goes on, has everything counted anew, removes it,
// and waits until nothing is left.
func (d *day) settle(ctx context.Context, admin *incluster.Client) error {
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
	before := map[string]*wire.Usage{}
	for _, u := range d.users {
		if before[u.name], err = usageOf(ctx, admin.Client, "/"+u.name); err != nil {
			return err
		}
	}
	j, err := admin.Recount(ctx)
	if err == nil {
		j, err = admin.WaitJob(ctx, moraine.JobID(j.Id), nil)
	}
	if err != nil {
		return err
	}
	if j.State != wire.JobState_JOB_STATE_DONE || j.Error != "" {
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
		seen := map[uint64]uint64{}
		if err := walk(ctx, admin.Client, "/"+u.name, seen); err != nil {
			return err
		}
		bytes := uint64(0)
		for _, size := range seen {
			bytes += size
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

func usageOf(ctx context.Context, c *client.Client, path string) (*wire.Usage, error) {
	attr, err := c.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	u, err := c.Usage(ctx, moraine.InodeID(attr.Inode))
	return u.GetUsage(), err
}

// walk finds every inode below a directory, and its size.
func walk(ctx context.Context, c *client.Client, path string, seen map[uint64]uint64) error {
	for e, err := range c.ReadDir(ctx, path) {
		if err != nil {
			return err
		}
		seen[e.Attr.Inode] = e.Attr.Size
		if e.Attr.Type == wire.FileType_FILE_TYPE_DIRECTORY {
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
		for _, err := range c.Jobs(ctx, false) {
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

// empty waits until nothing is left of what was removed.
func (d *day) empty(ctx context.Context, c *client.Client) error {
	for {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		if err != nil {
			return err
		}
		r := resp.GetCluster()
		if r.Inodes == 1 && r.Stripes == 0 && r.PendingBytes == 0 && r.LeakedBytes == 0 && r.LostStripes == 0 && r.RepairQueued == 0 {
			return d.c.Check()
		}
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
			return fmt.Errorf("left: %d inodes, %d stripes (%d lost), %d bytes pending, %d leaked", r.Inodes, r.Stripes, r.LostStripes, r.PendingBytes, r.LeakedBytes)
		}
	}
}

// TestADayOfTrees runs some hours of cluster time, in the long form a day.
func TestADayOfTrees(t *testing.T) {
	seed, length := powerSeed(t), testseed.Of(5*time.Minute, 24*time.Hour)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		d, err := runDay(t.Context(), seed, length)
		t.Logf("seed %d (MORAINE_TEST_SEED repeats it): %s of cluster time, killed %v; users did %v", seed, time.Since(began).Round(time.Minute), d.kills, d.counts)
		require.NoError(t, err)
	})
}
