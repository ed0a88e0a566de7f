package state_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/check"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// bench is a state machine over a store in memory. It encodes every command into a log entry, as
// the service does.
type bench struct {
	t     testing.TB
	m     *state.Machine
	kv    *statetest.KV
	index uint64
	wall  int64
	node  string
	// fence, if set, is the store that commands and reads use instead of kv.
	fence     *statetest.Fenced
	partition uint32
	settle    uint64 // of commands, milliseconds; 0 is the default
	// mirror, if set, sees every command and its result.
	mirror func(*statepb.Command, state.Result)
	// cached is what clients could have cached before the last command.
	cached cached
	// entries is the log so far.
	entries [][]byte
	drawn   uint64 // the newest random part of a session number
}

// store is the machine's store.
func (b *bench) store() kvtx.KV {
	if b.fence != nil {
		return b.fence
	}
	return b.kv
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, m: state.New(0), kv: statetest.NewKV(), wall: 1_000_000_000, node: "c1"}
	b.apply(&statepb.Command{Op: &statepb.Command_Init{Init: &statepb.Init{Cluster: make([]byte, 16), Incarnation: 1}}})
	return b
}

// newCluster is a bench with n hosts of one device each, device i+1 on host
// n<i+1>.
func newCluster(t testing.TB, n int) *bench {
	b := newBench(t)
	for i := 1; i <= n; i++ {
		b.registerHost(fmt.Sprintf("n%d", i), 1)
	}
	return b
}

// registerHost registers a host with some devices, whose UUIDs derive from its
// name.
func (b *bench) registerHost(name string, devices int) *wire.RegisterHostReply {
	h := &wire.Host{Id: name, Addresses: []string{name + ":1"}}
	for d := range devices {
		uuid := make([]byte, 16)
		copy(uuid, name)
		uuid[15] = byte(d + 1)
		h.Devices = append(h.Devices, &wire.Device{Uuid: uuid, Capacity: 1 << 40})
	}
	resp := b.as(name, "chunkserver", &wire.MetaRequest{Op: &wire.MetaRequest_RegisterHost{RegisterHost: &wire.RegisterHost{Host: h}}})
	b.ok(resp)
	return resp.GetRegisterHost()
}

// command fills in the fields that a proposer sets.
func (b *bench) command(cmd *statepb.Command) *statepb.Command {
	b.wall += 1_000_000
	cmd.Version, cmd.WallNanos, cmd.SettleMillis = 1, b.wall, b.settle
	if req := cmd.GetRequest(); req != nil && req.Partition == 0 {
		req.Partition = b.partition
	}
	return cmd
}

// apply applies one command in an entry of its own.
func (b *bench) apply(cmd *statepb.Command) state.Result {
	b.t.Helper()
	return b.applyAll(b.command(cmd))[0]
}

// applyAll applies commands in one entry.
func (b *bench) applyAll(cmds ...*statepb.Command) []state.Result {
	b.t.Helper()
	var raw [][]byte
	for _, c := range cmds {
		b.draw(c)
		p, err := proto.Marshal(c)
		if err != nil {
			b.t.Fatal(err)
		}
		raw = append(raw, p)
	}
	b.index++
	entry := state.EncodeEntry(raw)
	if b.entries = append(b.entries, entry); len(b.entries) > maxRecorded {
		b.entries = nil
	}
	res, err := applyEntry(b.m, b.store(), b.index, entry)
	if err != nil {
		b.t.Fatalf("entry %d: %v", b.index, err)
	}
	b.checkTouched(res)
	if b.mirror != nil {
		for n := range cmds {
			b.mirror(cmds[n], res[n])
		}
	}
	return res
}

// draw assigns a number to a new session, as a leader does.
func (b *bench) draw(c *statepb.Command) {
	if open := c.GetRequest().GetOpenSession(); open != nil && open.Drawn == 0 {
		b.drawn++
		open.Drawn = b.drawn
	}
}

// applyEntry applies a committed entry, as a replica does.
func applyEntry(m *state.Machine, kv kvtx.KV, index uint64, entry []byte) ([]state.Result, error) {
	cmds, err := state.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	batch, err := m.Begin(kv, index)
	if err != nil {
		return nil, err
	}
	var out []state.Result
	for _, c := range cmds {
		r, err := batch.Apply(c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, batch.Flush()
}

// as applies a request without a session, by node with a role.
func (b *bench) as(node, role string, req *wire.MetaRequest) *wire.MetaResponse {
	b.t.Helper()
	req.Partition = max(req.Partition, b.partition)
	return b.apply(&statepb.Command{Caller: &statepb.Caller{Node: node, Role: role}, Op: &statepb.Command_Request{Request: req}}).Response
}

func (b *bench) tick(millis uint64) {
	b.t.Helper()
	b.ok(b.apply(&statepb.Command{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: millis}}}).Response)
}

// ok fails the test if resp is a failure.
func (b *bench) ok(resp *wire.MetaResponse) *wire.MetaResponse {
	b.t.Helper()
	if e := resp.GetError(); e != nil {
		b.t.Fatalf("%s: %s: %s: %s", moraine.Kind(e.Kind), e.Op, e.Ref, e.Text)
	}
	return resp
}

// kind returns the Kind of a failure; ok if it is none.
func kind(resp *wire.MetaResponse) string {
	if e := resp.GetError(); e != nil {
		return moraine.Kind(e.Kind).String()
	}
	return "ok"
}

// client is a session that numbers its requests.
type client struct {
	*bench
	id     uint64
	root   uint64
	number uint64
}

// open opens a session of the bench's node; change may be nil.
func (b *bench) open(change func(*wire.OpenSession)) *client {
	b.t.Helper()
	nonce := make([]byte, 16)
	binary.BigEndian.PutUint64(nonce, b.index+1)
	op := &wire.OpenSession{Node: b.node, Role: "client", Scope: "/", Nonce: nonce}
	if change != nil {
		change(op)
	}
	resp := b.ok(b.as(op.Node, op.Role, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: op}}))
	return &client{bench: b, id: resp.GetSession().GetSession(), root: resp.GetSession().GetRoot()}
}

// request wraps an operation as the client's next request.
func (c *client) request(req *wire.MetaRequest) *wire.MetaRequest {
	c.number++
	req.Session, req.Number, req.AckedBelow = c.id, c.number, c.number
	return req
}

// do applies a mutation.
func (c *client) do(req *wire.MetaRequest) *wire.MetaResponse {
	c.t.Helper()
	return c.send(c.request(req)).Response
}

// send applies a request as it is.
func (c *client) send(req *wire.MetaRequest) state.Result {
	c.t.Helper()
	return c.apply(&statepb.Command{Caller: &statepb.Caller{Node: c.node, Role: "client"}, Op: &statepb.Command_Request{Request: req}})
}

// read answers a read.
func (c *client) read(req *wire.MetaRequest) *wire.MetaResponse {
	c.t.Helper()
	req.Session, req.Partition = c.id, max(req.Partition, c.partition)
	resp, err := c.m.Read(c.store(), &statepb.Caller{Node: c.node}, req)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func (c *client) create(op *wire.Create) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: op}})
}

func (c *client) mkdir(parent uint64, name string) uint64 {
	c.t.Helper()
	return c.ok(c.create(&wire.Create{Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_DIRECTORY, Mode: 0o755})).GetEntry().GetAttr().GetInode()
}

func (c *client) mkfile(parent uint64, name string) uint64 {
	c.t.Helper()
	return c.ok(c.create(&wire.Create{Parent: parent, Name: name, Type: wire.FileType_FILE_TYPE_REGULAR, Mode: 0o644})).GetEntry().GetAttr().GetInode()
}

func (c *client) walk(path string) *wire.MetaResponse {
	c.t.Helper()
	return c.read(&wire.MetaRequest{Op: &wire.MetaRequest_Walk{Walk: &wire.Walk{Path: path, Follow: true}}})
}

func (c *client) attr(inode uint64) *wire.Attr {
	c.t.Helper()
	return c.ok(c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetAttr{GetAttr: &wire.GetAttr{Inode: inode}}})).GetEntry().GetAttr()
}

func (c *client) grant(inode uint64, count uint32) uint64 {
	c.t.Helper()
	return c.ok(c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Grant{Grant: &wire.Grant{Inode: inode, Count: count}}})).GetGrant().GetFirst()
}

func (c *client) commit(op *wire.Commit) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Commit{Commit: op}})
}

func (c *client) extents(inode, offset uint64, limit uint32) *wire.MetaResponse {
	c.t.Helper()
	return c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetExtents{GetExtents: &wire.GetExtents{Inode: inode, Offset: offset, Limit: limit}}})
}

func (c *client) link(inode, parent uint64, name string) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Link{Link: &wire.Link{Inode: inode, Parent: parent, Name: name}}})
}

func (c *client) release(inodes ...uint64) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Release{Release: &wire.Release{Inodes: inodes}}})
}

func (c *client) setXattr(op *wire.SetXattr) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_SetXattr{SetXattr: op}})
}

func (c *client) xattr(inode uint64, name string) *wire.MetaResponse {
	c.t.Helper()
	return c.read(&wire.MetaRequest{Op: &wire.MetaRequest_GetXattr{GetXattr: &wire.GetXattr{Inode: inode, Name: name}}})
}

func (c *client) clone(op *wire.Clone) *wire.MetaResponse {
	c.t.Helper()
	return c.do(&wire.MetaRequest{Op: &wire.MetaRequest_Clone{Clone: op}})
}

// stripe is a new stripe of length bytes with a chunk on each of devices.
func stripe(id, length uint64, devices ...uint32) *wire.Stripe {
	s := &wire.Stripe{Id: id, Scheme: &wire.Scheme{K: 1, M: uint32(len(devices) - 1)}, Length: length}
	if len(devices) == 6 {
		s.Scheme = &wire.Scheme{K: 4, M: 2}
	}
	for i, d := range devices {
		s.Chunks = append(s.Chunks, &wire.ChunkState{Device: d, Crc: uint32(id)*31 + uint32(i), Level: uint32(moraine.NVMe)})
	}
	return s
}

func extent(offset, length, stripe, at uint64) *wire.Extent {
	return &wire.Extent{Offset: offset, Length: length, Stripe: stripe, StripeOffset: at}
}

// check runs the full-scan verifier.
func (b *bench) check() {
	b.t.Helper()
	if problems, err := check.Check(b.m.View(b.store())); err != nil || len(problems) > 0 {
		b.t.Fatalf("check: %v: %q", err, problems)
	}
}

// maxRecorded bounds the log that a bench keeps.
const maxRecorded = 10_000
