package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/simcmd"
	"github.com/morainefs/moraine/sim"
	"github.com/stretchr/testify/require"
)

// The model uses the measurements of a benchmark, except where a flag gives a value.
func TestSimTakesWhatWasMeasured(t *testing.T) {
	lines := filepath.Join(t.TempDir(), "lines")
	require.NoError(t, os.WriteFile(lines, []byte(`{"name":"write","value":1,"unit":"GB/s","limit":2,"cpu_s_per_gb":3}
{"name":"read","value":1,"limit":5,"cpu_s_per_gb":0.5}
{"name":"create","value":777}
`), 0o600))
	stdout, stderr, code := invoke(t, "sim", "throughput", "--from", lines, "--read-cpu", "0.25", "--json")
	require.Zero(t, code, stderr)
	var got struct {
		Creates float64   `json:"creates_per_second"`
		Parts   sim.Parts `json:"parts"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, []float64{777, 3, 0.25, 3e9, 5e9}, []float64{got.Creates, got.Parts.WriteCPU, got.Parts.ReadCPU, got.Parts.DeviceWrite, got.Parts.DeviceRead})
}

func TestSimIsUsedRightly(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte("write 1\n"), 0o600))
	for name, args := range map[string][]string{
		"too few hosts": {"sim", "durability", "--hosts", "3"},
		"uneven racks":  {"sim", "durability", "--domain", "rack", "--racks", "7"},
		"a scheme":      {"sim", "durability", "--scheme", "4:2"},
		"no network":    {"sim", "throughput", "--nic", "0"},
		"no lines":      {"sim", "throughput", "--from", empty},
	} {
		_, stderr, code := invoke(t, args...)
		require.Equal(t, cli.ExitWrongUse, code, "%s: %s", name, stderr)
	}
	stdout, stderr, code := invoke(t, "sim", "durability", "--episodes", "500", "--seed", "4")
	require.Zero(t, code, stderr)
	require.Equal(t, 2*3, strings.Count(stdout, " to "), "an interval for each figure of each scheme: %s", stdout)
	require.Contains(t, stderr+stdout, "seed 4")
}

// TestSimDurabilityTakesTheMeasuredRebuild reads docs/BENCHMARKS.md for the default rate of
// the hosts. The output says that this rate is measured, and does not say so of another
// one.
func TestSimDurabilityTakesTheMeasuredRebuild(t *testing.T) {
	page, err := os.ReadFile("../../docs/BENCHMARKS.md")
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\| an eighth \| ([0-9.]+), ([0-9.]+) GB/s:`).FindStringSubmatch(string(page))
	require.Len(t, row, 3, "the measured rows of the rebuild")
	slower := math.Inf(1)
	for _, cell := range row[1:] {
		rate, err := strconv.ParseFloat(cell, 64)
		require.NoError(t, err)
		slower = min(slower, rate*1e9)
	}
	said := regexp.MustCompile("`sim durability` takes the measured rate, and says so: ([0-9.]+) GB/s of six hosts, ([0-9]+) MiB/s of each").FindStringSubmatch(string(page))
	require.Len(t, said, 3, "what the page says that the simulator takes")
	all, err := strconv.ParseFloat(said[1], 64)
	require.NoError(t, err)
	require.InDelta(t, slower, all*1e9, 1, "the slower run")
	each, err := strconv.ParseInt(said[2], 10, 64)
	require.NoError(t, err)
	require.EqualValues(t, each<<20, simcmd.MeasuredRebuild)
	require.InDelta(t, all*1e9/6, simcmd.MeasuredRebuild, 0.5*(1<<20), "one host of six, to a MiB/s")

	for rate, measured := range map[string]bool{"": true, "13MiB": true, "200MiB": false} {
		args := []string{"sim", "durability", "--episodes", "500", "--seed", "4", "--scheme", "x3"}
		if rate != "" {
			args = append(args, "--rebuild-rate", rate)
		}
		stdout, stderr, code := invoke(t, args...)
		require.Zero(t, code, stderr)
		require.Equal(t, measured, strings.Contains(stdout+stderr, "measured"), "--rebuild-rate %q: %s", rate, stderr)
	}
}
