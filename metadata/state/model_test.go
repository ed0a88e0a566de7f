package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/morainefs/moraine/internal/testseed"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/jobs"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/metadata/state/statetest"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// fewCommands is how many random commands a seed of the short form makes.
const fewCommands = 350

// modelCell is what one byte of a file is made of; the zero cell is a hole.
type modelCell struct {
	stripe uint64
	at     uint64
}

// modelNode is a file, directory or link in the model.
type modelNode struct {
	id       uint64
	typ      wire.FileType
	parent   *modelNode
	children map[string]*modelNode
	cells    []modelCell
	target   string
	rdev     uint32
	owner    *client
	locks    modelLocks
	names    int  // of a file or link
	linked   bool // has had several names: those in a removed tree count until the job reaches them
	xattrs   map[string]string
	attr     modelAttr
	policy   modelPolicy
}

// model is a namespace in plain Go. The tests compare the state machine with it.
type model struct {
	*bench
	rng     *rand.Rand
	replica *statetest.KV
	root    *modelNode
	nodes   []*modelNode // alive, in order of creation
	clients []*client
	grants  map[*client][]uint64 // unused numbers
	most    int                  // most keys that one command wrote
	mostOf  string               // the command that wrote them

	tier   *tier
	movers map[string]*miniMover

	quotas    map[*modelNode]modelUsage // 0: no bound
	overQuota int                       // commands that a quota refused
	recounts  int
	made      map[string]int // number of commands by kind
	// content has the bytes of each generation that was flushed, and staged has those of stripes
	// that objects were staged to.
	content map[string][]modelCell
	staged  map[uint64][]modelCell
	// rewriter is the session of a mover that rewrites stripes.
	rewriter  *client
	rewritten int
	packed    int        // files
	dice      *rand.Rand // for later kinds of commands, so that the choice of other commands stays the same
	lockDice  *rand.Rand // for locks, likewise
	// delegationDice is for delegations.
	delegationDice *rand.Rand
}

// TestRandomCommandsAgainstModel runs random commands with new seeds in every run.
func TestRandomCommandsAgainstModel(t *testing.T) {
	first, steps := testseed.First(t), testseed.Of(fewCommands, 3000)
	runModels(t, first, testseed.Runs(t, 1, 40), steps)
}

// TestRandomCommandsAreOfEveryKind runs seeds that are known to reach every command.
func TestRandomCommandsAreOfEveryKind(t *testing.T) {
	if made := runModels(t, 89, testseed.Of(2, 4), fewCommands); !t.Failed() {
		holdCommands(t, made)
	}
}

// runModels runs random commands for several seeds in a row and returns the number of each kind.
func runModels(t *testing.T, first uint64, runs, steps int) map[string]int {
	t.Helper()
	var mu sync.Mutex
	made := map[string]int{}
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed < first+uint64(runs); seed++ {
			t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
				t.Parallel()
				m := newModel(t, seed)
				m.run(steps)
				mu.Lock()
				defer mu.Unlock()
				for op, n := range m.made {
					made[op] += n
				}
			})
		}
	})
	return made
}

// run makes random commands and checks their effects.
func (m *model) run(steps int) {
	for n := range steps {
		m.step()
		if n%max(100, steps/10) == 99 {
			m.compare()
		}
	}
	m.compare()
	m.settleTier()
	m.t.Logf("no command wrote more than %d keys (%s), %d were refused for a quota, %d recounts, %d rewritings, %d files packed", m.most, m.mostOf, m.overQuota, m.recounts, m.rewritten, m.packed)
	if m.most > 4096 { // TestLargestCommands has the largest of each kind
		m.t.Errorf("a %s wrote %d keys", m.mostOf, m.most)
	}
}

func newModel(t *testing.T, seed uint64) *model { return newModelOf(newCluster(t, 7), seed) }

// newModelOf is a model of a bench that has 7 hosts and nothing else.
func newModelOf(b *bench, seed uint64) *model {
	m := &model{bench: b, rng: rand.New(rand.NewPCG(seed, 0)), dice: rand.New(rand.NewPCG(seed, 1)), lockDice: rand.New(rand.NewPCG(seed, 2)), delegationDice: rand.New(rand.NewPCG(seed, 3)), grants: map[*client][]uint64{}, made: map[string]int{}}
	m.clients = []*client{m.open(leased), m.open(leased)}
	m.root = &modelNode{id: m.clients[0].root, typ: wire.FileType_FILE_TYPE_DIRECTORY, children: map[string]*modelNode{}, names: 1}
	m.nodes = []*modelNode{m.root}
	m.root.attr = attrOf(m.clients[0].attr(m.root.id))
	m.replica = m.own()
	m.bench.mirror = m.onReplica
	m.bench.settle = 20_000
	m.tier = &tier{bench: m.bench, s: &bucket{objects: map[string]string{}, uploads: map[string]upload{}}, c: m.open(nil)}
	m.movers, m.content, m.staged = map[string]*miniMover{}, map[string][]modelCell{}, map[uint64][]modelCell{}
	m.quotas = map[*modelNode]modelUsage{}
	m.tier.staged = func(stripe uint64, o *wire.Object, off, n uint64) {
		m.staged[stripe] = m.content[fmt.Sprintf("%x/%x", o.Inode, o.Generation)][off : off+n]
	}
	return m
}

// mutate sends one request to both replicas, sometimes twice, and compares their results.
func (m *model) mutate(c *client, req *wire.MetaRequest) *wire.MetaResponse {
	m.t.Helper()
	req = c.request(req)
	before := m.quotaUsage()
	resp := m.replicate(c, req)
	m.holdQuotas(req, resp, before)
	if m.rng.IntN(10) == 0 {
		again := m.replicate(c, proto.Clone(req).(*wire.MetaRequest))
		if !proto.Equal(resp, again) {
			m.t.Fatalf("the repeat was answered %v, the first time %v", again, resp)
		}
	}
	return resp
}

func (m *model) replicate(c *client, req *wire.MetaRequest) *wire.MetaResponse {
	m.t.Helper()
	return m.applyBoth(&statepb.Command{Caller: &statepb.Caller{Node: c.node}, Op: &statepb.Command_Request{Request: req}})
}

func (m *model) applyBoth(cmd *statepb.Command) *wire.MetaResponse {
	m.t.Helper()
	cmd = m.command(cmd)
	before := m.kv.Sets + m.kv.Deletes
	res := m.applyAll(cmd)[0]
	if n := m.kv.Sets + m.kv.Deletes - before; n > m.most {
		m.most, m.mostOf = n, opOf(cmd)
	}
	return res.Response
}

// onReplica applies a command to the replica too.
func (m *model) onReplica(cmd *statepb.Command, res state.Result) {
	m.made[opOf(cmd)]++
	other, err := m.m.Apply(m.replica, m.index, cmd)
	if err != nil || !proto.Equal(other.Response, res.Response) {
		m.t.Fatalf("replicas answer %v and %v (%v)", res.Response, other.Response, err)
	}
}

func (m *model) pick(ok func(*modelNode) bool) *modelNode {
	var all []*modelNode
	for _, n := range m.nodes {
		if ok(n) {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[m.rng.IntN(len(all))]
}

func isDir(n *modelNode) bool { return n.typ == wire.FileType_FILE_TYPE_DIRECTORY }
func isFile(n *modelNode) bool {
	return n.typ == wire.FileType_FILE_TYPE_REGULAR
}

func (m *model) name() string { return string(rune('a' + m.rng.IntN(12))) }

func (m *model) step() {
	m.t.Helper()
	if m.dice.IntN(12) == 0 {
		m.stepRewrite()
	}
	if m.dice.IntN(12) == 0 {
		m.stepPack()
	}
	if m.dice.IntN(8) == 0 {
		m.stepRange()
	}
	if m.lockDice.IntN(8) == 0 {
		m.stepLock(m.clients[m.lockDice.IntN(len(m.clients))])
	}
	if m.delegationDice.IntN(12) == 0 {
		m.stepDelegate(m.clients[m.delegationDice.IntN(len(m.clients))], m.clients[m.delegationDice.IntN(len(m.clients))])
	}
	c := m.clients[m.rng.IntN(len(m.clients))]
	switch n := m.rng.IntN(100); {
	case n < 16:
		m.stepCreate(c)
	case n < 17:
		m.stepXattr(c)
	case n < 18:
		[]func(*client){m.stepAttr, m.stepAttr, m.stepEndGrant, m.stepPolicy}[m.rng.IntN(4)](c)
	case n < 22:
		m.stepLink(c)
	case n < 30:
		m.stepRename(c)
	case n < 35:
		m.stepRemove(c)
	case n < 36:
		m.stepRelease(c)
	case n < 38:
		m.stepRemoveTree(c)
	case n < 44:
		m.stepTruncate(c)
	case n < 52:
		m.stepClone(c)
	case n < 62:
		m.stepTier()
	case n < 94:
		m.stepCommit(c)
	case n < 96:
		m.stepSession()
	case n < 97:
		m.stepQuota()
	case n < 98:
		m.stepCloneTree(c)
	default:
		m.applyBoth(&statepb.Command{Op: &statepb.Command_Tick{Tick: &statepb.Tick{Millis: 500}}})
		m.runJobs()
	}
}

func (m *model) expect(resp *wire.MetaResponse, want string, what string, args ...any) bool {
	m.t.Helper()
	if got := kind(resp); got != want {
		m.t.Fatalf("%s: %s (%s), want %s", fmt.Sprintf(what, args...), got, resp.GetError().GetText(), want)
	}
	return want == "ok"
}

// stepSession closes or expires a session and opens another.
func (m *model) stepSession() {
	at := m.rng.IntN(len(m.clients))
	c := m.clients[at]
	if m.rng.IntN(2) == 0 {
		m.expect(m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_CloseSession{CloseSession: &wire.CloseSession{}}})), "ok", "close")
	} else {
		m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_ExpireSessions{ExpireSessions: &statepb.ExpireSessions{Sessions: []uint64{c.id}}}}), "ok", "expire")
	}
	for _, n := range slices.Clone(m.nodes) {
		if n.owner == c {
			m.gone(n)
		}
	}
	delete(m.grants, c)
	resp := m.replicate(c, c.request(&wire.MetaRequest{Op: &wire.MetaRequest_Create{Create: &wire.Create{Parent: m.root.id, Name: "x", Type: wire.FileType_FILE_TYPE_REGULAR}}}))
	m.expect(resp, "session expired", "create in a dead session")
	nonce := make([]byte, 16)
	m.rng.Uint64()
	for i := range nonce {
		nonce[i] = byte(m.rng.Uint32())
	}
	open := m.replicate(c, &wire.MetaRequest{Op: &wire.MetaRequest_OpenSession{OpenSession: &wire.OpenSession{Node: c.node, Scope: "/", Nonce: nonce, Leases: true}}})
	m.expect(open, "ok", "open")
	m.clients[at] = &client{bench: m.bench, id: open.GetSession().GetSession(), root: open.GetSession().GetRoot()}
}

// runJobs runs some pieces of the leader's jobs.
func (m *model) runJobs() {
	jobs, err := jobs.PendingJobs(m.m.View(m.kv), []wire.JobKind{wire.JobKind_JOB_KIND_REMOVE_TREE, wire.JobKind_JOB_KIND_DROP_TABLES, wire.JobKind_JOB_KIND_RECOUNT}, 100)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, j := range jobs {
		m.expect(m.applyBoth(&statepb.Command{Op: &statepb.Command_RunJob{RunJob: &statepb.RunJob{Id: j.Id, Limit: uint32(1 + m.rng.IntN(200))}}}), "ok", "run job")
	}
}
