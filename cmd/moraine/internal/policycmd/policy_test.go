package policycmd

import (
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/stretchr/testify/require"
)

func TestPoliciesAreSaidInWords(t *testing.T) {
	require.Equal(t, policyInfo{Path: "p", Flush: "never", Scheme: "by the number of hosts", Foreign: "refuse"}, describePolicy("p", client.InodePolicy{}))
	over := client.Policy{Foreign: client.ForeignOverwrite}
	require.Equal(t, policyInfo{Path: "p", Flush: "never", Scheme: "by the number of hosts", Foreign: "overwrite", Own: true},
		describePolicy("p", client.InodePolicy{Own: over, Effective: over}))
	on := client.Policy{Flush: client.FlushOnCommit, Scheme: moraine.Scheme{K: 4, M: 2}}
	require.Equal(t, policyInfo{Path: "p", Flush: "on-commit", Scheme: "4+2", Foreign: "refuse", Own: true}, describePolicy("p", client.InodePolicy{Own: on, Effective: on}))
}

// Parts of a policy that the command does not name stay.
func TestPolicyChangesWhatIsGiven(t *testing.T) {
	p := &client.Policy{Flush: client.FlushOnCommit, Scheme: moraine.Scheme{K: 4, M: 2}}
	apply := func(flushGiven bool, flush string, schemeGiven bool, scheme string) {
		change, err := policyChange(flushGiven, flush, schemeGiven, scheme)
		require.NoError(t, err)
		change(p)
	}
	apply(true, "never", false, "")
	require.Equal(t, client.FlushNever, p.Flush)
	require.EqualValues(t, 4, p.Scheme.K)
	apply(false, "", true, "x3")
	require.Equal(t, client.FlushNever, p.Flush)
	require.EqualValues(t, 1, p.Scheme.K)
	apply(true, "inherit", true, "inherit")
	require.Equal(t, client.FlushInherit, p.Flush)
	require.Zero(t, p.Scheme)
}
