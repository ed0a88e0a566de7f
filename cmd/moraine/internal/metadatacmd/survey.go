package metadatacmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/address"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// survey is what is known of the metadata servers where none leads: the answer of each of
// them.
type survey struct {
	Leader    string           `json:"leader"`    // always empty: a report of a leader has it
	Voters    int              `json:"voters"`    // by the newest log that answers; 0: none answers
	Needed    int              `json:"needed"`    // voters needed to elect a leader
	Answering int              `json:"answering"` // voters that answered
	Servers   []surveyedServer `json:"servers"`
	Next      string           `json:"next"` // what to do
}

// surveyedServer is the answer of one server, or the reason why it gave none.
type surveyedServer struct {
	ID        string   `json:"id"` // empty where no server that answers knows the members
	Addresses []string `json:"addresses"`
	Role      string   `json:"role"` // voter, non-voter, or unknown: by the newest log that answers
	Alive     bool     `json:"alive"`
	Error     string   `json:"error,omitempty"` // why it did not answer

	State         string  `json:"state"`   // leads, follows, alone (it knows no leader), starting, or silent
	Follows       string  `json:"follows"` // the leader that it knows; empty: none
	LeaderSeconds float64 `json:"leader_contact_seconds"`
	Term          uint64  `json:"term"`
	Applied       uint64  `json:"applied"`
	Commit        uint64  `json:"commit"`
	LogLast       uint64  `json:"log_last"`
	LogBytes      uint64  `json:"log_bytes"`
	Snapshot      uint64  `json:"snapshot"`
	Incarnation   uint64  `json:"incarnation"`
	LowSpace      bool    `json:"low_space"`
	WriteSeconds  float64 `json:"write_waits_seconds"` // for how long a write to the log has not returned
	Append        latency `json:"append"`
	Release       string  `json:"release"`
	Level         uint64  `json:"level"`

	members []*wire.Member
}

const (
	stateLeads    = "leads"
	stateFollows  = "follows"
	stateAlone    = "alone"
	stateStarting = "starting"
	stateSilent   = "silent"
)

// surveyTimeout bounds the request to one server.
const surveyTimeout = 5 * time.Second

// lookAtMetadata requests all metadata servers from the leader, and calls withLeader with the
// answer. Where no server leads, it calls withoutLeader with the answer of each server. The error
// says what to do.
func lookAtMetadata(ctx context.Context, env *cli.Env, withLeader func(*wire.MembersReply) error, withoutLeader func(survey) error) error {
	reply, err := askLeader(ctx, env)
	if err == nil {
		return withLeader(reply)
	}
	switch kind := moraine.KindOf(err); {
	case ctx.Err() != nil, kind != moraine.Unavailable && kind != moraine.Timeout && kind != moraine.NotLeader:
		return err
	}
	sv, bad := takeSurvey(ctx, env)
	if bad != nil {
		return err
	}
	if bad := withoutLeader(sv); bad != nil {
		return bad
	}
	return errors.New(sv.Next)
}

func askLeader(ctx context.Context, env *cli.Env) (*wire.MembersReply, error) {
	c, err := env.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return view.Members(ctx, c)
}

// takeSurvey queries each server of --endpoint, and those that they name.
func takeSurvey(ctx context.Context, env *cli.Env) (survey, error) {
	sec, err := env.Security()
	if err != nil {
		return survey{}, err
	}
	log, err := env.CommandLog()
	if err != nil {
		return survey{}, err
	}
	pool, err := sec.Pool(transport.RoleAdmin, "ops", transport.PoolDeps{Log: log})
	if err != nil {
		return survey{}, err
	}
	defer pool.Close()
	ask := func(addrs []string) surveyedServer { return askMember(ctx, pool.Metadata(addrs), addrs) }
	return surveyOf(askMembers(address.SplitEndpoint(env.Global.Endpoint), ask)), nil
}

// askMembers queries servers, and those that their answers name, all of a round at once.
func askMembers(servers [][]string, ask func(addrs []string) surveyedServer) (all []surveyedServer) {
	asked := map[string]bool{}
	for len(servers) > 0 {
		servers = slices.DeleteFunc(servers, func(addrs []string) bool {
			key := strings.Join(addrs, ",")
			again := asked[key] || len(addrs) == 0
			asked[key] = true
			return again
		})
		round := make([]surveyedServer, len(servers))
		var wg sync.WaitGroup
		for i, addrs := range servers {
			wg.Go(func() { round[i] = ask(addrs) })
		}
		wg.Wait()
		servers = nil
		for _, s := range round {
			for _, m := range s.members {
				servers = append(servers, m.Addresses)
			}
		}
		all = append(all, round...)
	}
	return all
}

// askMember queries one server.
func askMember(ctx context.Context, server transport.Metadata, addrs []string) surveyedServer {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	resp, err := server.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetMember{GetMember: &wire.GetMember{}}})
	if err != nil {
		return surveyedServer{Addresses: addrs, State: stateSilent, Error: cause(err), LeaderSeconds: -1}
	}
	return surveyedOf(resp.GetMember(), addrs)
}

// cause is why a server did not answer, without its address, which stands beside it.
func cause(err error) string {
	var e *moraine.Error
	if errors.As(cli.Innermost(err), &e) && e.Err != nil {
		return cli.Sentence(e.Err)
	}
	return cli.Sentence(cli.Innermost(err))
}

func surveyedOf(m *wire.MemberReply, addrs []string) surveyedServer {
	st := m.GetStatus()
	s := surveyedServer{ID: m.GetId(), Addresses: addrs, Alive: true, Follows: m.GetLeader(), LeaderSeconds: float64(st.GetLeaderContactMillis()) / 1e3,
		Term: st.GetTerm(), Applied: st.GetApplied(), Commit: st.GetCommit(), LogLast: st.GetLogLast(), LogBytes: st.GetLogBytes(),
		Snapshot: st.GetSnapshotIndex(), Incarnation: m.GetIncarnation(), LowSpace: st.GetLowSpace(),
		WriteSeconds: float64(st.GetAppendWaitsMillis()) / 1e3, Append: latencyOf(st.GetAppend()),
		Release: st.GetRelease(), Level: st.GetLevel(), members: m.GetMembers()}
	switch {
	case m.GetServing():
		s.State = stateLeads
	case len(s.members) == 0: // it has not opened its log
		s.State = stateStarting
	case s.Follows != "" && s.Follows != s.ID:
		s.State = stateFollows
	default:
		s.State = stateAlone
	}
	return s
}

// surveyOf judges the answers of servers by the newest of their logs.
func surveyOf(servers []surveyedServer) survey {
	sv := survey{Servers: []surveyedServer{}}
	members := newestMembers(servers)
	alive := map[string]bool{}
	servers = slices.Clone(servers)
	for i := range servers {
		s := &servers[i]
		if s.ID, s.Role = placeOf(*s, members); s.ID != "" && s.Alive {
			alive[s.ID] = true
		}
	}
	for _, s := range servers {
		twice := func(o surveyedServer) bool { return s.ID != "" && o.ID == s.ID }
		if !s.Alive && alive[s.ID] || slices.ContainsFunc(sv.Servers, twice) {
			continue // it was queried at another address too
		}
		sv.Servers = append(sv.Servers, s)
	}
	for _, m := range members {
		if !m.Voter {
			continue
		}
		sv.Voters++
		if alive[m.Id] {
			sv.Answering++
		}
	}
	if sv.Voters > 0 {
		sv.Needed = sv.Voters/2 + 1
	}
	slices.SortStableFunc(sv.Servers, func(a, b surveyedServer) int { return cmp.Compare(a.ID, b.ID) })
	sv.Next = sv.next()
	return sv
}

// newestMembers are the members of the group, as the newest log has them.
func newestMembers(servers []surveyedServer) []*wire.Member {
	var newest surveyedServer
	for _, s := range servers {
		if len(s.members) > 0 && cmp.Or(cmp.Compare(s.Incarnation, newest.Incarnation), cmp.Compare(s.Term, newest.Term), cmp.Compare(s.LogLast, newest.LogLast)) >= 0 {
			newest = s
		}
	}
	return newest.members
}

// placeOf finds a server among the members; by its address, where it did not give its id.
func placeOf(s surveyedServer, members []*wire.Member) (id, role string) {
	for _, m := range members {
		at := func(addr string) bool { return slices.Contains(s.Addresses, addr) }
		switch {
		case s.ID != m.Id && (s.ID != "" || !slices.ContainsFunc(m.Addresses, at)):
		case m.Voter:
			return m.Id, "voter"
		default:
			return m.Id, "non-voter"
		}
	}
	return s.ID, "unknown"
}

// next says that no server leads, and what to do about it.
func (sv survey) next() string {
	var silent, alive, starting []string
	for _, s := range sv.Servers {
		name := cmp.Or(s.ID, strings.Join(s.Addresses, "/"))
		switch s.State {
		case stateLeads:
			return s.ID + " leads by now: run the command again"
		case stateSilent:
			silent = append(silent, name)
			continue
		case stateStarting:
			starting = append(starting, name)
		}
		alive = append(alive, name)
	}
	switch {
	case len(alive) == 0:
		return fmt.Sprintf("no metadata server answers at %s: start them, or correct --endpoint", strings.Join(silent, ", "))
	case len(starting) > 0:
		return fmt.Sprintf("no metadata server leads. Still starting: %s; the log there says what it "+
			"waits for (a new cluster does for all of its servers). Run the command again",
			strings.Join(starting, ", "))
	case sv.Answering >= max(sv.Needed, 1):
		return fmt.Sprintf("no metadata server leads, though %d of %d voters answer: an election takes "+
			"seconds, so run the command again. If this stays so, they do not reach each other, or "+
			"their disks hang: their logs say which", sv.Answering, sv.Voters)
	}
	which := ""
	if len(alive) > 1 {
		which = ", the voter whose last entry is the newest by its term and then its index (`moraine " +
			"inspect log`)"
	}
	return fmt.Sprintf("no metadata server leads: %d of %d voters answer, and an election needs %d. "+
		"Waiting loses nothing, but nothing can change until then. Start what is down (%s) again, each "+
		"on its own --data. Only if the disks of so many are lost for good, let one that is left "+
		"(%s)%s continue alone: `moraine metadata force-quorum --help`",
		sv.Answering, sv.Voters, sv.Needed, strings.Join(silent, ", "), strings.Join(alive, ", "), which)
}

// printSurvey shows people the answers of the servers.
func printSurvey(env *cli.Env, sv survey) error {
	rows := make([]table.Row, len(sv.Servers))
	for i, s := range sv.Servers {
		rows[i] = table.Row{cmp.Or(s.ID, "?"), s.Role, strings.Join(s.Addresses, ","), "", "", "", "", "", "", s.standing()}
		if s.Alive {
			copy(rows[i][3:], table.Row{s.Term, s.Applied, fmt.Sprintf("%d, %s", s.LogLast, cli.Size(s.LogBytes)), s.disk(), s.Append, s.Release})
		}
	}
	cli.PrintTable(env.Out, table.Row{"id", "role", "address", "term", "applied", "log up to", "disk", "append p50 / p99", "release", ""}, rows)
	return nil
}

// standing says the state of a server, for people.
func (s surveyedServer) standing() string {
	switch s.State {
	case stateSilent:
		return "NO ANSWER: " + s.Error
	case stateFollows:
		return "follows " + s.Follows
	case stateAlone:
		if s.LeaderSeconds > 0 {
			return fmt.Sprintf("knows no leader, last one seen %v ago", time.Duration(s.LeaderSeconds*float64(time.Second)).Round(time.Second))
		}
		return "knows no leader"
	}
	return s.State
}

func (s surveyedServer) disk() string {
	switch {
	case s.WriteSeconds >= hangsAfter:
		return fmt.Sprintf("HANGS for %.0f s", s.WriteSeconds)
	case s.LowSpace:
		return "NEARLY FULL"
	}
	return "well"
}
