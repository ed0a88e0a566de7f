// Package intruder_test sends every request of every server under each kind of
// certificate with references to foreign things. It finds the requests in the
// protos, so that a new one fails these tests until a row says its outcome. One
// path through it: inWorld makes a cluster with own and foreign things, builder
// fills in a request, and row (table_test.go) says what the answer must be.
package intruder_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
)

// secret is in every name, key and value that an intruder must not see. secretSize
// is the length of the foreign file, which nothing else has.
const (
	secret     = "sekrit"
	secretSize = 700_001
)

// refs are the things that a request names.
type refs struct {
	dir, file, stripe, object, job, run uint64
	name, run1                          string // of the file, and of the run's directory
	device                              uint32
	host                                string
}

// world is a cluster with a directory /a, which intruders may see, and /b, which
// they may not.
type world struct {
	t       *testing.T
	cluster *incluster.Cluster
	owner   *incluster.Client
	session uint64 // of another client
	own     refs   // below /a
	foreign refs   // below /b
	missing refs   // of no existing thing
	stripes []*wire.Stripe
	hosts   map[uint32]string // by device
}

func newWorld(t *testing.T) *world {
	ctx := context.WithoutCancel(t.Context()) // it is cancelled before the cleanup runs
	c, err := incluster.Start(ctx, incluster.Options{Seed: 1, Metadata: 1, Chunkservers: 4, SessionTimeout: 10 * time.Hour,
		TokenLife: 10 * time.Hour, SnapshotEntries: 1 << 20, MemTableBytes: 4 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	c.Net.SetFaults("*", "*", memnet.Faults{}) // no delays
	require.NoError(t, c.WaitReady(ctx))
	w := &world{t: t, cluster: c, hosts: map[uint32]string{}}
	w.owner, err = c.ClientWith(ctx, "owner", client.Config{InlineBytes: -1}) // what it writes has chunks
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.owner.Close()) })
	for _, h := range w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetTopology{GetTopology: &wire.GetTopology{}}}).GetTopology().Hosts {
		for _, d := range h.Devices {
			w.hosts[d.Id] = h.Id
		}
	}
	w.session = w.intrude(transport.Peer{Role: transport.RoleClient, Node: "another"}).session
	w.own = w.fill("/a", "own", 1000)
	// Foreign stripe numbers are far from all those that an intruder gets.
	for range 3 {
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: w.own.file, Count: 1024}}})
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: w.own.file, Count: 1024}}})
	}
	w.foreign = w.fill("/b", secret, secretSize)
	extents := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: w.foreign.file, Limit: 100}}}).GetExtents()
	w.stripes = extents.Stripes
	const far = 1 << 30
	f := w.foreign
	w.missing = refs{dir: f.dir + far, file: f.file + far, stripe: f.stripe + far, object: f.object + far, job: f.job + far, run: f.run + far,
		name: "nothing", run1: "norun", device: f.device, host: f.host}
	return w
}

// ask sends a request as the owner, a client of the root.
func (w *world) ask(req *wire.MetaRequest) *wire.MetaResponse {
	w.t.Helper()
	resp, err := rawclient.Of(w.owner).Meta(w.t.Context(), req)
	require.NoError(w.t, err)
	return resp
}

// fill makes one of everything below a directory of the root.
func (w *world) fill(top, tag string, size int) refs {
	t, ctx := w.t, w.t.Context()
	r := refs{name: tag + "-file", run1: tag + "-run"}
	_, err := w.owner.Mkdir(ctx, top, 0o777)
	require.NoError(t, err)
	dir, err := w.owner.Mkdir(ctx, top+"/"+tag+"-dir", 0o777)
	require.NoError(t, err)
	r.dir = uint64(dir.Inode())
	path := top + "/" + tag + "-dir/" + r.name
	f, err := w.owner.Create(ctx, path, client.CreateOptions{})
	require.NoError(t, err)
	_, err = f.Write(make([]byte, size))
	require.NoError(t, err)
	_, err = f.Commit(ctx)
	require.NoError(t, err)
	attr, err := w.owner.Stat(ctx, path)
	require.NoError(t, err)
	r.file = uint64(attr.Inode())
	require.NoError(t, w.owner.Xattrs().Set(ctx, moraine.InodeID(r.file), "user."+tag, []byte(tag+"-value"), 0))
	extents := w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: r.file, Limit: 100}}}).GetExtents()
	r.stripe, r.device = extents.Stripes[0].Id, extents.Stripes[0].Chunks[0].Device
	r.host = w.hosts[r.device]
	require.NoError(t, w.owner.SaveSteps(ctx, top+"/"+tag+"-dir/"+r.run1, 7))
	attr, err = w.owner.Stat(ctx, top+"/"+tag+"-dir/"+r.run1)
	require.NoError(t, err)
	r.run = uint64(attr.Inode())
	r.job, r.object = w.flush(r.file, tag)
	admin := w.intrude(transport.Peer{Role: transport.RoleAdmin, Node: "admin-" + tag})
	_, err = admin.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetQuota{SetQuota: &wire.SetQuota{Inode: r.dir, Bytes: 1 << 40}}})
	require.NoError(t, err)
	return r
}

// flush records an object of a file, as a mover does, and starts one more job of
// the file.
func (w *world) flush(inode uint64, tag string) (job, object uint64) {
	m := w.intrude(transport.Peer{Role: transport.RoleChunkserver, Node: "mover-" + tag})
	do := func(req *wire.MetaRequest) *wire.MetaResponse {
		w.t.Helper()
		resp, err := m.do(req)
		require.NoError(w.t, err)
		return resp
	}
	lease := func(kind wire.JobKind) *wire.Job {
		w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_QueueMove{QueueMove: &wire.QueueMove{Kind: kind, Inodes: []uint64{inode}}}})
		jobs := do(&wire.MetaRequest{Op: &wire.MetaRequest_LeaseJobs{LeaseJobs: &wire.LeaseJobs{Max: 1, WaitMillis: 60_000, Bucket: "bucket", Prefix: "p",
			Kinds: []wire.JobKind{kind}}}}).GetJobs().Jobs
		require.Len(w.t, jobs, 1)
		return jobs[0]
	}
	j := lease(wire.JobKind_JOB_KIND_FLUSH)
	intent := &wire.ObjectIntent{Kind: wire.IntentKind_INTENT_KIND_UPLOAD, Bucket: "bucket", Key: j.Move.Key, Generation: j.Move.Attr.Generation}
	begin := &wire.MetaRequest{Op: &wire.MetaRequest_BeginObject{BeginObject: &wire.BeginObject{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Intent: intent}}}
	do(begin)
	intent.UploadId = "u"
	do(begin)
	const piece = 1 << 20
	flush := &wire.CommitFlush{Job: j.Id, LeaseEpoch: j.LeaseEpoch, Sums: []uint32{7}}
	do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitFlush{CommitFlush: flush}})
	intent.Completing, intent.Etag, intent.Size, intent.Crc = true, tag+"-etag", j.Move.Attr.Size, 7
	do(begin)
	flush.Sums, flush.Final = nil, true
	flush.Object = &wire.Object{Bucket: "bucket", Key: j.Move.Key, Etag: intent.Etag, Size: intent.Size, Crc: 7, Generation: intent.Generation,
		Piece: piece, Verified: wire.Verified_VERIFIED_STORE_CRC}
	do(&wire.MetaRequest{Op: &wire.MetaRequest_CommitFlush{CommitFlush: flush}})
	do(&wire.MetaRequest{Op: &wire.MetaRequest_FinishJob{FinishJob: &wire.FinishJob{Id: j.Id, LeaseEpoch: j.LeaseEpoch}}})
	object = w.ask(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: inode}}}).GetEntry().Attr.Object
	require.NotZero(w.t, object)
	return lease(wire.JobKind_JOB_KIND_EVICT).Id, object
}

// intruder calls the servers itself, under a certificate.
type intruder struct {
	w       *world
	peer    transport.Peer
	dialer  transport.Dialer
	meta    transport.Metadata
	session uint64
	token   []byte
	number  uint64
}

func (w *world) intrude(peer transport.Peer) *intruder {
	i := &intruder{w: w, peer: peer, dialer: w.cluster.DialerAs(peer)}
	w.t.Cleanup(func() { _ = i.dialer.Close() })
	i.meta = i.dialer.Metadata([]string{memnet.Address("m1")})
	i.open()
	return i
}

func (i *intruder) open() {
	resp, err := i.meta.Do(i.w.t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{
		Leases: true, Nonce: fmt.Appendf(nil, "%-12.12s%04d", i.peer.Node, i.number)}}})
	require.NoError(i.w.t, err)
	i.session, i.token = resp.GetSession().Session, resp.GetSession().Token
	i.dialer.SetToken(i.token)
}

func (i *intruder) do(req *wire.MetaRequest) (*wire.MetaResponse, error) {
	return i.doIn(i.session, req)
}

func (i *intruder) doIn(session uint64, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	i.number++
	req = proto.CloneOf(req)
	req.Session, req.Number, req.RoutingEpoch = session, i.number, 1
	ctx, cancel := context.WithTimeout(i.w.t.Context(), time.Minute)
	defer cancel()
	return i.meta.Do(ctx, req)
}

func (i *intruder) chunks(device uint32) transport.Chunks {
	return i.dialer.Chunks(i.w.hosts[device], []string{memnet.Address(i.w.hosts[device])})
}

// kind is the name of an error, or of none, in the tables.
func kind(err error) string {
	var e *moraine.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return e.Kind.String()
	}
	return err.Error()
}

// picture is everything that the owner sees of the foreign things.
func (w *world) picture() string {
	f := w.foreign
	var b strings.Builder
	for _, req := range []*wire.MetaRequest{
		{Op: &wire.MetaRequest_ReadDir{ReadDir: &wire.ReadDir{Inode: f.dir, Limit: 100}}},
		{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: f.dir}}},
		{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: f.file}}},
		{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: f.file}}},
		{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: f.file, Limit: 100}}},
		{Op: &wire.MetaRequest_ListSteps{ListSteps: &wire.ListSteps{Run: f.run, All: true, Limit: 100}}},
		{Op: &wire.MetaRequest_ListRuns{ListRuns: &wire.ListRuns{Parent: f.dir, Limit: 100}}},
		{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: f.dir}}},
		{Op: &wire.MetaRequest_GetUsage{GetUsage: &wire.GetUsage{Inode: f.dir}}},
		{Op: &wire.MetaRequest_ListJobs{ListJobs: &wire.ListJobs{Id: f.job}}},
	} {
		resp := w.ask(req)
		resp.Lease = nil
		b.WriteString(resp.String() + "\n")
	}
	return b.String()
}
