package address_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/address"
)

// TestParse: each form of an address, and those that are no address in a cluster.
func TestParse(t *testing.T) {
	for s, want := range map[string]address.Address{
		"moraine://h1,h2:1/a/b":  {Hosts: "h1,h2:1", Path: "/a/b"},
		"moraine:///a/../b/":     {Path: "/b", Dir: true},
		"moraine://h1":           {Hosts: "h1", Path: "/", Dir: true},
		"moraine://[::1]:7/x//y": {Hosts: "[::1]:7", Path: "/x/y"},
		"moraine:///":            {Path: "/", Dir: true},
	} {
		got, err := address.Parse(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for s, says := range map[string]string{"": "moraine://HOST/PATH", "/a": "moraine://HOST/PATH", "s3://b/k": "moraine://HOST/PATH", "moraine:/a/b": "moraine:///a/b"} {
		_, err := address.Parse(s)
		require.ErrorContains(t, err, says, s)
	}
}

// TestCleanPath: one path for each way to write it, without a cluster of its own.
func TestCleanPath(t *testing.T) {
	for s, want := range map[string]string{"/runs/a": "/runs/a", "runs/a": "/runs/a", "/runs//a/": "/runs/a", "moraine:///runs/a/": "/runs/a", "": "/", "moraine:///": "/", "/a/../b": "/b"} {
		got, err := address.CleanPath(s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for s, says := range map[string]string{"moraine://h1:7400/runs/a": "write moraine:///runs/a", "moraine:/runs/a": "moraine:///runs/a"} {
		_, err := address.CleanPath(s)
		require.ErrorContains(t, err, says, s)
	}
}

// TestSplitEndpoint: hosts with and without ports, spaces, and an address.
func TestSplitEndpoint(t *testing.T) {
	require.Equal(t, [][]string{{"h1:7400"}, {"h2:1"}, {"[::1]:7400"}, {"[::2]:5"}, {"unix:/run/m"}},
		address.SplitEndpoint("moraine://h1, h2:1,::1,[::2]:5,,unix:/run/m/"))
	require.Empty(t, address.SplitEndpoint(" , "))
}
