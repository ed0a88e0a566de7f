package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/sim"
)

func parts(t *testing.T) sim.Parts {
	return sim.Parts{Scheme: scheme(t, "4+2"), Hosts: 10, Devices: 4, DeviceWrite: 3e9, DeviceRead: 6e9, NIC: 12.5e9, Cores: 8,
		Clients: 100, ClientNIC: 50e9, ClientCores: 4, WriteCPU: 1.5, ReadCPU: 1, ClientShare: 0.4,
		Creates: 10_000, Stats: 50_000, WriteCommands: 5}
}

// Each part is the limit where it is the scarce one, at the value that can be
// computed by hand.
func TestEachPartBinds(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*sim.Parts)
		part        string
		write, read float64 // 0: limited by another part
	}{
		"devices":        {func(p *sim.Parts) { p.DeviceWrite, p.DeviceRead = 1e9, 1e9 }, "the hosts' devices", 40e9 * 4 / 6, 40e9},
		"network":        {func(p *sim.Parts) { p.NIC = 1e9 }, "the hosts' network", 10e9 * 4 / 6, 10e9},
		"cores":          {func(p *sim.Parts) { p.Cores = 1 }, "the hosts' cores", 10 / 0.9 * 1e9, 10 / 0.6 * 1e9},
		"client network": {func(p *sim.Parts) { p.Clients, p.ClientNIC = 1, 3e9 }, "the clients' network", 2e9, 3e9},
		"client cores":   {func(p *sim.Parts) { p.Clients, p.ClientCores = 1, 3 }, "the clients' cores", 5e9, 7.5e9},
		"metadata":       {func(p *sim.Parts) { p.WriteCommands = 10_000 }, "the metadata service", 1e9, 0},
	} {
		p := parts(t)
		c.change(&p)
		got, err := sim.Compute(p)
		require.NoError(t, err)
		require.Equal(t, c.part, got.Write[0].Part, name)
		require.InEpsilon(t, c.write, got.Write[0].Value, 1e-9, name)
		if c.read > 0 {
			require.Equal(t, c.part, got.Read[0].Part, name)
			require.InEpsilon(t, c.read, got.Read[0].Value, 1e-9, name)
		}
	}
}

func TestThroughputRefusesNonsense(t *testing.T) {
	for name, change := range map[string]func(*sim.Parts){
		"no hosts": func(p *sim.Parts) { p.Hosts = 0 }, "no network": func(p *sim.Parts) { p.NIC = 0 },
		"a share": func(p *sim.Parts) { p.ClientShare = 1 }, "a scheme": func(p *sim.Parts) { p.Scheme = moraine.Scheme{} },
	} {
		p := parts(t)
		change(&p)
		_, err := sim.Compute(p)
		require.ErrorIs(t, err, moraine.InvalidArgument, name)
	}
}
