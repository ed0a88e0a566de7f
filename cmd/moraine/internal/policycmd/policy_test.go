package policycmd

import (
	"slices"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/stretchr/testify/require"
)

func TestPoliciesAreSaidInWords(t *testing.T) {
	require.Equal(t, policyInfo{Path: "p", Flush: "never", Scheme: "by the number of hosts", Foreign: "refuse", Trash: "off"}, describePolicy("p", client.InodePolicy{}))
	over := client.Policy{Foreign: client.ForeignOverwrite}
	require.Equal(t, policyInfo{Path: "p", Flush: "never", Scheme: "by the number of hosts", Foreign: "overwrite", Trash: "off", Own: true},
		describePolicy("p", client.InodePolicy{Own: over, Effective: over}))
	on := client.Policy{Flush: client.FlushOnCommit, Scheme: moraine.Scheme{K: 4, M: 2}}
	require.Equal(t, policyInfo{Path: "p", Flush: "on-commit", Scheme: "4+2", Foreign: "refuse", Trash: "off", Own: true}, describePolicy("p", client.InodePolicy{Own: on, Effective: on}))
}

// Parts of a policy that the command does not name stay.
func TestPolicyChangesWhatIsGiven(t *testing.T) {
	p := &client.Policy{Flush: client.FlushOnCommit, Scheme: moraine.Scheme{K: 4, M: 2}, Trash: time.Hour}
	apply := func(c changes, given ...string) error {
		change, err := c.parse(func(flag string) bool { return slices.Contains(given, flag) })
		if err == nil {
			change(p)
		}
		return err
	}
	require.NoError(t, apply(changes{flush: "never"}, "flush"))
	require.Equal(t, &client.Policy{Flush: client.FlushNever, Scheme: moraine.Scheme{K: 4, M: 2}, Trash: time.Hour}, p)
	require.NoError(t, apply(changes{scheme: "x3", foreign: "overwrite", trash: "off"}, "scheme", "foreign", "trash"))
	require.Equal(t, &client.Policy{Flush: client.FlushNever, Scheme: moraine.Scheme{K: 1, M: 2}, Foreign: client.ForeignOverwrite, Trash: client.TrashOff}, p)
	require.NoError(t, apply(changes{trash: "36h"}, "trash"))
	require.Equal(t, 36*time.Hour, p.Trash)
	require.NoError(t, apply(changes{"inherit", "inherit", "inherit", "inherit"}, "flush", "scheme", "foreign", "trash"))
	require.Equal(t, &client.Policy{}, p)
	for _, wrong := range []changes{{flush: "x"}, {scheme: "0+1"}, {foreign: "x"}, {trash: "1s"}, {trash: "soon"}} {
		require.ErrorContains(t, apply(wrong, "flush", "scheme", "foreign", "trash"), "--")
	}
	require.ErrorContains(t, apply(changes{}), "no change")
}
