package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
)

// Parts is the parts of a cluster and the cost of its work. Rates are in operations
// or bytes per second, and bytes are those of files unless a comment says
// otherwise.
type Parts struct {
	Scheme moraine.Scheme
	// Hosts store, with Devices each of DeviceWrite and DeviceRead, a network
	// interface of NIC in each direction, and Cores available for storage.
	Hosts, Devices          int
	DeviceWrite, DeviceRead float64
	NIC, Cores              float64
	// Clients write and read, over ClientNIC, with ClientCores available.
	Clients                int
	ClientNIC, ClientCores float64
	// CPU seconds for a GB (1e9 bytes) of files, of all processes, and the client's
	// share of them.
	WriteCPU, ReadCPU, ClientShare float64
	// Creates and Stats are the capacity of the metadata service; WriteCommands is
	// how many of its commands a written GB takes.
	Creates, Stats, WriteCommands float64
}

func (p *Parts) validate() error {
	for name, v := range map[string]float64{"hosts": float64(p.Hosts), "devices": float64(p.Devices), "device write": p.DeviceWrite,
		"device read": p.DeviceRead, "NIC": p.NIC, "cores": p.Cores, "clients": float64(p.Clients), "client NIC": p.ClientNIC,
		"client cores": p.ClientCores, "write CPU": p.WriteCPU, "read CPU": p.ReadCPU, "creates": p.Creates, "stats": p.Stats} {
		if v <= 0 {
			return &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument, Err: fmt.Errorf("%s: %g must be greater than 0", name, v)}
		}
	}
	if !p.Scheme.Valid() || p.ClientShare <= 0 || p.ClientShare >= 1 {
		return &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("scheme %s, client share %g of the CPU time: it must be between 0 and 1", p.Scheme, p.ClientShare)}
	}
	return nil
}

// Limit is what one part of the cluster allows.
type Limit struct {
	Part  string  `json:"part"`
	Value float64 `json:"value"`
}

// Throughput is the most that a cluster of the parts can do, and which part
// limits it. That is the first limit of each; the others follow by size.
type Throughput struct {
	Write []Limit `json:"write_bytes_per_second"`
	Read  []Limit `json:"read_bytes_per_second"`
	// Creates and Stats are those of the metadata service: one leader answers them
	// all, for any number of hosts.
	Creates float64 `json:"creates_per_second"`
	Stats   float64 `json:"stats_per_second"`
}

const gb = 1e9

// Compute assumes that each part is fully busy, and that work is spread evenly. A
// real cluster does less, because of skew and other load.
func Compute(p Parts) (Throughput, error) {
	if err := p.validate(); err != nil {
		return Throughput{}, err
	}
	k, n := float64(p.Scheme.K), float64(p.Scheme.Chunks())
	hosts, devices, clients := float64(p.Hosts), float64(p.Hosts*p.Devices), float64(p.Clients)
	useful := k / n // share of the written and sent bytes
	t := Throughput{Creates: p.Creates, Stats: p.Stats,
		Write: []Limit{
			{"the hosts' devices", devices * p.DeviceWrite * useful},
			{"the hosts' network", hosts * p.NIC * useful},
			{"the hosts' cores", hosts * p.Cores / (p.WriteCPU * (1 - p.ClientShare)) * gb},
			{"the clients' network", clients * p.ClientNIC * useful},
			{"the clients' cores", clients * p.ClientCores / (p.WriteCPU * p.ClientShare) * gb},
		},
		Read: []Limit{
			{"the hosts' devices", devices * p.DeviceRead},
			{"the hosts' network", hosts * p.NIC},
			{"the hosts' cores", hosts * p.Cores / (p.ReadCPU * (1 - p.ClientShare)) * gb},
			{"the clients' network", clients * p.ClientNIC},
			{"the clients' cores", clients * p.ClientCores / (p.ReadCPU * p.ClientShare) * gb},
		},
	}
	if p.WriteCommands > 0 {
		t.Write = append(t.Write, Limit{"the metadata service", p.Creates / p.WriteCommands * gb})
	}
	for _, l := range [][]Limit{t.Write, t.Read} {
		slices.SortStableFunc(l, func(a, b Limit) int { return cmp.Compare(a.Value, b.Value) })
	}
	return t, nil
}
