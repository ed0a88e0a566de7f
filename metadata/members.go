package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state"
	"github.com/morainefs/moraine/metadata/state/statepb"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// maxVoters bounds the servers of a cluster: more make every change slower.
	maxVoters = 9
	// maxMembers bounds the servers that the leader remembers of; see note.
	maxMembers = 64
	// caughtUp is how many entries a member may lack and still be given a vote:
	// what comes in within some milliseconds.
	caughtUp = 256
	// settlePatience bounds how long a removal waits for the others to be heard of: right
	// after a leader began to lead it has not heard of all of them.
	settlePatience = 2 * time.Second
	settleStep     = 50 * time.Millisecond
)

// memberNews is what the leader heard from the other metadata servers.
type memberNews struct {
	mu    sync.Mutex
	heard map[string]memberHeard
}

type memberHeard struct {
	status    *wire.MemberStatus
	directory moraine.UUID
	at        time.Time
}

func newMemberNews() *memberNews { return &memberNews{heard: make(map[string]memberHeard)} }

// note remembers what was heard of a server. Where that would be one too many,
// the one that is no member and was not heard of for longest is forgotten.
func (n *memberNews) note(id string, h memberHeard, members func() []Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.heard[id]; !known && len(n.heard) >= maxMembers {
		n.evict(members())
	}
	n.heard[id] = h
}

// evict forgets one; nobody where all are members, of which there are few.
func (n *memberNews) evict(members []Member) {
	oldest := ""
	for id, h := range n.heard {
		member := slices.ContainsFunc(members, func(m Member) bool { return m.ID == id })
		if !member && (oldest == "" || h.at.Before(n.heard[oldest].at)) {
			oldest = id
		}
	}
	delete(n.heard, oldest)
}

// of returns what was heard of a server lately.
func (n *memberNews) of(id string, now time.Time) (memberHeard, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h, ok := n.heard[id]
	return h, ok && now.Sub(h.at) < 5*beatEvery
}

// ids returns all servers that were heard of lately.
func (n *memberNews) ids(now time.Time) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for id, h := range n.heard {
		if now.Sub(h.at) < 5*beatEvery {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// judgeBeat says whether the server that a beat is of may take part, and records
// its directory where it is a member whose directory is not known yet.
func (l *leader) judgeBeat(ctx context.Context, beat *wire.MemberBeat, reply *wire.MemberBeatReply) error {
	if beat.Id == "" || len(beat.Directory) != len(moraine.UUID{}) {
		return &moraine.Error{Kind: moraine.InvalidArgument, Err: errors.New("a beat needs an id and a directory")}
	}
	if err := l.store.ReadBarrier(ctx); err != nil {
		return err
	}
	dir := moraine.UUID(beat.Directory)
	have, known, info, err := l.seatOf(beat.Id)
	if err != nil {
		return err
	}
	_, member := l.member(beat.Id)
	m := l.server.membership()
	switch {
	case known && have != dir:
		reply.Refused = wipedText(beat.Id)
		return nil
	case known && !member && m != nil && m.Settled():
		reply.Refused = fmt.Sprintf("%s was removed from the cluster: end it; its --data is of no use any more", beat.Id)
		return nil
	case beat.Status.GetLevel() < info.FeatureLevel:
		reply.Refused = fmt.Sprintf("its build speaks feature level %d, and the cluster is at %d: start %s with a newer build", beat.Status.GetLevel(), info.FeatureLevel, beat.Id)
		return nil
	case member && !known && info.FeatureLevel >= state.LevelMembers:
		if err := l.setMember(ctx, beat.Id, dir); err != nil {
			return err
		}
	}
	l.news.note(beat.Id, memberHeard{status: beat.Status, directory: dir, at: l.deps.Clock.Now()}, l.store.Members)
	l.countFullDisks()
	reply.Accepted = true
	return nil
}

func wipedText(id string) string {
	return fmt.Sprintf("it was in the cluster with another directory, and has forgotten what it acknowledged and voted there. "+
		"Start it on an empty --data under an id that was never used (say %[1]sb), with --join and all servers in --peers, and give it the place of the old one: "+
		"moraine metadata replace %[1]s %[1]sb=HOST:PORT", id)
}

func (l *leader) setMember(ctx context.Context, id string, dir moraine.UUID) error {
	_, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_SetMember{
		SetMember: &statepb.SetMember{Id: id, Directory: dir[:]}}})
	return err
}

// seatOf reads the directory that the state has for a server.
func (l *leader) seatOf(id string) (dir moraine.UUID, known bool, info state.ClusterInfo, err error) {
	err = l.store.View(func(r state.Reader, _ uint64) (err error) {
		if info, err = l.machine.Cluster(r); err != nil {
			return err
		}
		dir, known, err = l.machine.Member(r, id)
		return err
	})
	return dir, known, info, err
}

func (l *leader) member(id string) (Member, bool) {
	for _, m := range l.store.Members() {
		if m.ID == id {
			return m, true
		}
	}
	return Member{}, false
}

// tendMembers records this server's own directory, and gives a vote to members
// that have caught up. It is part of a tick.
func (l *leader) tendMembers(ctx context.Context, now time.Time) error {
	m := l.server.membership()
	if m == nil {
		return nil
	}
	if err := l.seatSelf(ctx, m); err != nil {
		return err
	}
	for _, member := range l.store.Members() {
		if member.Voter || l.whyNoVote(m, member, now) != "" {
			continue
		}
		if err := m.AddMember(ctx, member.ID, member.Addresses[0], true); err != nil {
			return err
		}
		l.deps.Log.Info("a metadata server has caught up, and votes", "member", member.ID)
	}
	return nil
}

func (l *leader) seatSelf(ctx context.Context, m Membership) error {
	if l.seated {
		return nil
	}
	dir, _, err := m.Directory()
	if err != nil {
		return err
	}
	have, known, info, err := l.seatOf(l.cfg.Node)
	if err != nil || info.FeatureLevel < state.LevelMembers {
		return err
	}
	if known && have != dir {
		l.deps.Log.Error("this server leads with a directory that is not the one recorded for it")
	}
	if !known {
		if err := l.setMember(ctx, l.cfg.Node, dir); err != nil {
			return err
		}
	}
	l.seated = true
	return nil
}

// whyNoVote says why a member that has no vote is given none now; "" where it is.
func (l *leader) whyNoVote(m Membership, member Member, now time.Time) string {
	_, known, info, err := l.seatOf(member.ID)
	own := m.MemberStatus()
	h, heard := l.news.of(member.ID, now)
	switch {
	case err != nil:
		return err.Error()
	case !member.Alive || len(member.Addresses) == 0:
		return "it does not answer: is it started, with --join?"
	case !heard:
		return "it has not told of itself yet"
	case h.status.GetLevel() < info.FeatureLevel:
		return fmt.Sprintf("its build speaks feature level %d, the cluster is at %d", h.status.GetLevel(), info.FeatureLevel)
	case !known && info.FeatureLevel >= state.LevelMembers:
		return "its directory is not recorded yet"
	case member.Match+caughtUp < own.LogLast:
		return fmt.Sprintf("it lacks %d of %d entries", own.LogLast-member.Match, own.LogLast)
	}
	return ""
}

// getMembers describes all metadata servers.
func (l *leader) getMembers(ctx context.Context, _ *call) (*wire.MetaResponse, error) {
	if err := l.store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	return l.membersReply()
}

func (l *leader) membersReply() (*wire.MetaResponse, error) {
	now := l.deps.Clock.Now()
	own := l.server.memberStatus()
	reply := &wire.MembersReply{Cluster: l.cluster.uuid[:], Term: l.store.Term(), Commit: own.LogLast,
		Sessions: uint64(l.sessions.count()), Leases: uint64(l.lease.count()), LeadershipMillis: uint64(now.Sub(l.began).Milliseconds()), Commands: l.server.ops.mix()}
	there := map[string]bool{}
	for _, m := range l.store.Members() {
		there[m.ID] = true
		w := &wire.Member{Id: m.ID, Addresses: l.server.addresses(m.ID), Voter: m.Voter, Leader: m.Leader, Alive: m.Alive,
			Match: m.Match, ContactMillis: m.Contact.Milliseconds()}
		if h, ok := l.news.of(m.ID, now); ok {
			w.Status = h.status
		}
		if m.ID == l.cfg.Node {
			w.Status, w.Match, w.Alive, w.ContactMillis = own, own.LogLast, true, 0
		}
		if own.LogLast > w.Match {
			w.Lag = own.LogLast - w.Match
		}
		if ms := l.server.membership(); ms != nil && !m.Voter {
			w.Why = l.whyNoVote(ms, m, now)
		}
		reply.Members = append(reply.Members, w)
	}
	for _, id := range l.news.ids(now) {
		if h, ok := l.news.of(id, now); ok && !there[id] {
			reply.Members = append(reply.Members, &wire.Member{Id: id, Waiting: true, Alive: true, Status: h.status})
		}
	}
	slices.SortFunc(reply.Members, func(a, b *wire.Member) int { return cmp.Compare(a.Id, b.Id) })
	err := l.store.View(func(r state.Reader, _ uint64) error {
		info, err := l.machine.Cluster(r)
		if err != nil {
			return err
		}
		reply.Incarnation, reply.FeatureLevel = uint64(info.Incarnation), info.FeatureLevel
		for _, m := range reply.Members {
			if _, m.Seated, err = l.machine.Member(r, m.Id); err != nil {
				return err
			}
		}
		return nil
	})
	return &wire.MetaResponse{Result: &wire.MetaResponse_Members{Members: reply}}, err
}

// addMember makes a server a member without a vote; tendMembers gives it one.
func (l *leader) addMember(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	m := l.server.membership()
	if m == nil {
		return nil, errNoMembership
	}
	if err := l.store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	asked := c.req.GetAddMember()
	there, err := l.mayAdd(asked)
	if err != nil {
		return nil, err
	}
	if !there {
		if err := m.AddMember(ctx, asked.Id, asked.Address, false); err != nil {
			return nil, err
		}
		l.deps.Log.Info("a metadata server was added, without a vote until it has caught up", "member", asked.Id, "address", asked.Address)
	}
	return l.membersReply()
}

// mayAdd refuses a server that must not be added; there is whether it is a
// member already.
func (l *leader) mayAdd(asked *wire.AddMember) (there bool, err error) {
	bad := func(kind moraine.Kind, format string, args ...any) error {
		return &moraine.Error{Op: "add metadata server", Ref: asked.Id, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if asked.Id == "" || len(asked.Id) > 255 || !isAddress(asked.Address) {
		return false, bad(moraine.InvalidArgument, "want an id, and an address as HOST:PORT or unix:PATH")
	}
	members := l.store.Members()
	for _, m := range members {
		same := slices.Contains(m.Addresses, asked.Address)
		switch {
		case m.ID == asked.Id && same:
			return true, nil
		case m.ID == asked.Id:
			return false, bad(moraine.Exists, "it is a member at %s already; to give it another address, name that in --peers of all servers and restart one after the other", strings.Join(m.Addresses, ", "))
		case same:
			return false, bad(moraine.Exists, "%s is at %s", m.ID, asked.Address)
		}
	}
	_, known, info, err := l.seatOf(asked.Id)
	switch {
	case err != nil:
		return false, err
	case known:
		return false, bad(moraine.Exists, "a server of this id was a member before, and an id is good for one directory only: give the new server an id that was never used")
	case len(members) >= maxVoters:
		return false, bad(moraine.TooLarge, "there are %d servers, and %d are the most: remove one first", len(members), maxVoters)
	}
	if h, heard := l.news.of(asked.Id, l.deps.Clock.Now()); heard && h.status.GetLevel() < info.FeatureLevel {
		return false, bad(moraine.NewerFormat, "its build speaks feature level %d, the cluster is at %d: give it a newer build", h.status.GetLevel(), info.FeatureLevel)
	}
	return false, nil
}

// isAddress is whether servers could dial it.
func isAddress(addr string) bool {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return path != ""
	}
	if strings.HasPrefix(addr, "mem:") { // of memnet
		return true
	}
	host, port, err := net.SplitHostPort(addr)
	return err == nil && host != "" && port != ""
}

// removeMember takes a server out, unless the others could not go on without it.
// Where it is this one it hands over the leadership instead, and the caller asks
// the next leader.
func (l *leader) removeMember(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	m := l.server.membership()
	if m == nil {
		return nil, errNoMembership
	}
	if err := l.store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	id := c.req.GetRemoveMember().GetId()
	member, there := l.member(id)
	if !there {
		_, known, _, err := l.seatOf(id)
		if err == nil && !known {
			err = &moraine.Error{Op: "remove metadata server", Ref: id, Kind: moraine.NotFound, Err: errors.New("no such server: see moraine metadata ls")}
		}
		if err != nil {
			return nil, err
		}
		return l.membersReply() // it was removed, and the answer lost
	}
	if member.Voter {
		if err := l.awaitRest(ctx, id); err != nil {
			return nil, err
		}
	}
	if id == l.cfg.Node {
		if err := l.handTo(ctx, m); err != nil {
			return nil, err
		}
		return nil, l.server.notLeading()
	}
	if err := m.RemoveMember(ctx, id); err != nil {
		return nil, err
	}
	l.deps.Log.Info("a metadata server was removed", "member", id)
	return l.membersReply()
}

// awaitRest fails where the voters but id are no majority that is up. A leader
// of late gives them a moment to be heard of.
func (l *leader) awaitRest(ctx context.Context, id string) error {
	deadline := l.deps.Clock.Now().Add(settlePatience)
	for {
		err := restGoesOn(l.store.Members(), id, l.cfg.Node)
		if err == nil || l.deps.Clock.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
		sleep(ctx, l.deps.Clock, settleStep)
	}
}

// restGoesOn fails where the voters but id could not form a majority. self is up.
func restGoesOn(members []Member, id, self string) error {
	rest, up := 0, 0
	var down []string
	for _, m := range members {
		if !m.Voter || m.ID == id {
			continue
		}
		rest++
		if m.Alive || m.ID == self {
			up++
		} else {
			down = append(down, m.ID)
		}
	}
	bad := func(format string, args ...any) error {
		return &moraine.Error{Op: "remove metadata server", Ref: id, Kind: moraine.Conflict, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case rest == 0:
		return bad("it is the last one that votes: add another first")
	case up <= rest/2:
		return bad("of the %d servers that would be left only %d answer, and they could decide nothing: start %s first, or add another", rest, up, strings.Join(down, ", "))
	}
	return nil
}

// handTo hands the leadership to the voter that is furthest.
func (l *leader) handTo(ctx context.Context, m Membership) error {
	best := Member{}
	for _, o := range l.store.Members() {
		if o.Voter && o.Alive && o.ID != l.cfg.Node && (best.ID == "" || o.Match > best.Match) {
			best = o
		}
	}
	if best.ID == "" {
		return &moraine.Error{Op: "remove metadata server", Ref: l.cfg.Node, Kind: moraine.Conflict, Err: errors.New("no other server can lead")}
	}
	return m.Transfer(ctx, best.ID)
}

// finishUpgrade raises the feature level to the newest that every member speaks.
func (l *leader) finishUpgrade(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	if err := l.store.ReadBarrier(ctx); err != nil {
		return nil, err
	}
	info, level, err := l.commonLevel()
	if err != nil {
		return nil, err
	}
	if asked := c.req.GetFinishUpgrade().GetLevel(); asked != 0 {
		if asked > level {
			return nil, &moraine.Error{Op: "finish upgrade", Kind: moraine.Conflict, Err: fmt.Errorf("not every metadata server speaks level %d: %s", asked, l.levels(asked))}
		}
		level = asked
	}
	if level > info.FeatureLevel {
		_, err := l.command(ctx, &statepb.Command{Op: &statepb.Command_SetFeatureLevel{
			SetFeatureLevel: &statepb.SetFeatureLevel{Level: level}}})
		if err != nil {
			return nil, err
		}
		l.deps.Log.Info("the feature level was raised", "from", info.FeatureLevel, "to", level)
	}
	return l.membersReply()
}

// commonLevel is the newest level that all members speak, voters or not: what
// has no vote replays the log too. It fails where one has not said.
func (l *leader) commonLevel() (info state.ClusterInfo, level uint64, err error) {
	if _, _, info, err = l.seatOf(l.cfg.Node); err != nil {
		return info, 0, err
	}
	level = moraine.FeatureLevel
	var silent []string
	for _, m := range l.store.Members() {
		if m.ID == l.cfg.Node {
			continue
		}
		h, heard := l.news.of(m.ID, l.deps.Clock.Now())
		if !heard {
			silent = append(silent, m.ID)
			continue
		}
		level = min(level, h.status.GetLevel())
	}
	if len(silent) > 0 {
		err = &moraine.Error{Op: "finish upgrade", Kind: moraine.Conflict, Err: fmt.Errorf("%s did not say which level its build speaks: start it, or remove it, and ask again (an earlier build does not say)", strings.Join(silent, ", "))}
	}
	return info, level, err
}

// levels names the members whose builds do not speak a level.
func (l *leader) levels(level uint64) string {
	var out []string
	if moraine.FeatureLevel < level {
		out = append(out, fmt.Sprintf("%s speaks %d", l.cfg.Node, moraine.FeatureLevel))
	}
	for _, m := range l.store.Members() {
		if h, ok := l.news.of(m.ID, l.deps.Clock.Now()); ok && m.ID != l.cfg.Node && h.status.GetLevel() < level {
			out = append(out, fmt.Sprintf("%s speaks %d", m.ID, h.status.GetLevel()))
		}
	}
	return strings.Join(out, ", ")
}
