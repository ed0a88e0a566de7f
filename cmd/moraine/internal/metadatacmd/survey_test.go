package metadatacmd

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// group are m1 to mN at ports of their own, as a log has them.
func group(n int) (out []*wire.Member) {
	for i := range n {
		out = append(out, &wire.Member{Id: fmt.Sprintf("m%d", i+1), Addresses: []string{fmt.Sprintf("h%d:7400", i+1)}, Voter: true})
	}
	return out
}

// answering is a server that returns a MemberReply.
func answering(n int, members []*wire.Member, change func(*wire.MemberReply)) surveyedServer {
	m := &wire.MemberReply{Id: fmt.Sprintf("m%d", n), Stage: wire.MemberStage_MEMBER_STAGE_ENTERED, Members: members,
		Status: &wire.MemberStatus{Term: 4, LogLast: 100, Applied: 99, LeaderContactMillis: -1}}
	if change != nil {
		change(m)
	}
	return surveyedOf(m, []string{fmt.Sprintf("h%d:7400", n)})
}

func silentServer(n int) surveyedServer {
	return surveyedServer{Addresses: []string{fmt.Sprintf("h%d:7400", n)}, State: stateSilent, Error: "connection refused"}
}

// The output without a leader fits what the answering servers know, and says what to do.
func TestSurveySaysWhatToDo(t *testing.T) {
	three := group(3)
	for name, c := range map[string]struct {
		servers   []surveyedServer
		answering int
		next      []string
		shown     []string
	}{
		"none answers": {[]surveyedServer{silentServer(1), silentServer(2)}, 0,
			[]string{"no metadata server answers at h1:7400, h2:7400", "--endpoint"}, []string{"NO ANSWER: connection refused"}},
		"one of three": {[]surveyedServer{silentServer(1), silentServer(2), answering(3, three, func(m *wire.MemberReply) { m.Status.LeaderContactMillis = 34_000 })}, 1,
			[]string{"1 of 3 voters answer, and an election needs 2", "Start what is down (m1, m2)", "one that is left (m3)", "force-quorum"},
			[]string{"m1", "voter", "knows no leader, last one seen 34s ago"}},
		"two of five": {[]surveyedServer{silentServer(1), silentServer(2), silentServer(3), answering(4, group(5), nil), answering(5, group(5), nil)}, 2,
			[]string{"one that is left (m4, m5), the voter whose last entry is the newest by its term and then its index"}, nil},
		"a majority in an election": {[]surveyedServer{silentServer(1), answering(2, three, nil), answering(3, three, func(m *wire.MemberReply) { m.Leader = "m1" })}, 2,
			[]string{"2 of 3 voters answer", "run the command again"}, []string{"follows m1", "knows no leader"}},
		"one leads by now": {[]surveyedServer{answering(1, three, func(m *wire.MemberReply) { m.Leader, m.Serving = "m1", true }), answering(2, three, nil)}, 2,
			[]string{"m1 leads by now"}, []string{"leads"}},
		"one has not started": {[]surveyedServer{answering(1, nil, nil), answering(2, three, nil), silentServer(3)}, 2,
			[]string{"Still starting: m1"}, []string{"starting"}},
		"disks": {[]surveyedServer{answering(1, three, func(m *wire.MemberReply) { m.Status.LowSpace = true }),
			answering(2, three, func(m *wire.MemberReply) { m.Status.AppendWaitsMillis = 1500 }), silentServer(3)}, 2,
			[]string{"run the command again"}, []string{"NEARLY FULL", "HANGS"}},
		"the newest log tells who votes": {[]surveyedServer{answering(1, group(5), func(m *wire.MemberReply) { m.Status.LogLast = 101 }), answering(2, three, nil), answering(3, three, nil)}, 3,
			[]string{"3 of 5 voters answer"}, nil},
		"asked at two addresses": {[]surveyedServer{answering(1, three, nil), answering(1, three, nil), silentServer(2), silentServer(3)}, 1,
			[]string{"1 of 3"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			sv := surveyOf(c.servers)
			require.Equal(t, c.answering, sv.Answering)
			for _, want := range c.next {
				require.Contains(t, sv.Next, want)
			}
			var out bytes.Buffer
			require.NoError(t, printSurvey((&cli.Env{Out: &out, Err: &out}), sv))
			for _, want := range c.shown {
				require.Contains(t, out.String(), want)
			}
			seen := map[string]bool{}
			for _, s := range sv.Servers {
				require.False(t, s.ID != "" && seen[s.ID], "%s is shown twice", s.ID)
				seen[s.ID] = true
			}
		})
	}
}

// The survey also queries servers that those of --endpoint name, and none twice.
func TestSurveyAsksWhoIsNamed(t *testing.T) {
	asked := map[string]int{}
	var all []surveyedServer
	members := group(3)
	all = askMembers([][]string{{"h1:7400"}, {"h1:7400"}}, func(addrs []string) surveyedServer {
		asked[addrs[0]]++ // a round of one server here, so one at a time
		if addrs[0] == "h1:7400" {
			return answering(1, members[:2], nil)
		}
		return answering(2, nil, nil)
	})
	require.Equal(t, map[string]int{"h1:7400": 1, "h2:7400": 1}, asked)
	require.Len(t, all, 2)
}
