package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/transport/wire"
)

// TestHealthInWords: only what a disk has told is said of it.
func TestHealthInWords(t *testing.T) {
	for want, h := range map[string]*wire.DiskHealth{
		"":                     nil,
		"ok, 7% worn, 41 C":    {WornPercent: 7, Celsius: 41},
		"ok, 0% worn, -5 C":    {Celsius: -5},
		"ok, 35 C":             {WearUntold: true, Celsius: 35},
		"ok":                   {WearUntold: true},
		"it is too hot":        {Text: "it is too hot"},
		"FAILING: it is spent": {Failing: true, Text: "it is spent"},
	} {
		require.Equal(t, want, healthOf(h))
	}
}
