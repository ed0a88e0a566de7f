package policycmd

import (
	"testing"

	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

func TestPoliciesAreSaidInWords(t *testing.T) {
	require.Equal(t, policyInfo{Path: "p", Flush: "never", Scheme: "by the number of hosts", Foreign: "refuse"}, describePolicy("p", &wire.PolicyReply{}))
	over := &wire.Policy{Foreign: wire.ForeignPolicy_FOREIGN_POLICY_OVERWRITE}
	require.Equal(t, policyInfo{Path: "p", Flush: "never", Scheme: "by the number of hosts", Foreign: "overwrite", Own: true},
		describePolicy("p", &wire.PolicyReply{Own: over, Effective: over}))
	on := &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT, Scheme: &wire.Scheme{K: 4, M: 2}}
	require.Equal(t, policyInfo{Path: "p", Flush: "on-commit", Scheme: "4+2", Foreign: "refuse", Own: true}, describePolicy("p", &wire.PolicyReply{Own: on, Effective: on}))
}

// Parts of a policy that the command does not name stay.
func TestPolicyChangesWhatIsGiven(t *testing.T) {
	p := &wire.Policy{Flush: wire.FlushPolicy_FLUSH_POLICY_ON_COMMIT, Scheme: &wire.Scheme{K: 4, M: 2}}
	apply := func(flushGiven bool, flush string, schemeGiven bool, scheme string) {
		change, err := policyChange(flushGiven, flush, schemeGiven, scheme)
		require.NoError(t, err)
		change(p)
	}
	apply(true, "never", false, "")
	require.Equal(t, wire.FlushPolicy_FLUSH_POLICY_NEVER, p.Flush)
	require.EqualValues(t, 4, p.Scheme.K)
	apply(false, "", true, "x3")
	require.Equal(t, wire.FlushPolicy_FLUSH_POLICY_NEVER, p.Flush)
	require.EqualValues(t, 1, p.Scheme.K)
	apply(true, "inherit", true, "inherit")
	require.Equal(t, wire.FlushPolicy_FLUSH_POLICY_UNSPECIFIED, p.Flush)
	require.Nil(t, p.Scheme)
}
