package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/morainefs/moraine"
)

// Parts is what a cluster is made of and what its work costs there. Rates are in
// bytes (of files, where nothing else is said) or operations a second.
type Parts struct {
	Scheme moraine.Scheme
	// Hosts store, with Devices each of DeviceWrite and DeviceRead, a network
	// interface of NIC in each direction, and Cores that may be used for storing.
	Hosts, Devices          int
	DeviceWrite, DeviceRead float64
	NIC, Cores              float64
	// Clients write and read, over ClientNIC, with ClientCores to spare.
	Clients                int
	ClientNIC, ClientCores float64
	// CPU seconds for a GB (1e9 bytes) of files, of all processes, and the share of
	// them that is the client's.
	WriteCPU, ReadCPU, ClientShare float64
	// Creates and Stats are what the metadata service does; WriteCommands is how
	// many of its commands a GB written takes.
	Creates, Stats, WriteCommands float64
}

func (p *Parts) validate() error {
	for name, v := range map[string]float64{"hosts": float64(p.Hosts), "devices": float64(p.Devices), "device write": p.DeviceWrite,
		"device read": p.DeviceRead, "NIC": p.NIC, "cores": p.Cores, "clients": float64(p.Clients), "client NIC": p.ClientNIC,
		"client cores": p.ClientCores, "write CPU": p.WriteCPU, "read CPU": p.ReadCPU, "creates": p.Creates, "stats": p.Stats} {
		if v <= 0 {
			return &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument, Err: fmt.Errorf("%s: %g is not more than 0", name, v)}
		}
	}
	if !p.Scheme.Valid() || p.ClientShare <= 0 || p.ClientShare >= 1 {
		return &moraine.Error{Op: "sim", Kind: moraine.InvalidArgument,
			Err: fmt.Errorf("scheme %s, %g of the CPU time the client's (between 0 and 1)", p.Scheme, p.ClientShare)}
	}
	return nil
}

// Limit is what one part of the cluster allows.
type Limit struct {
	Part  string  `json:"part"`
	Value float64 `json:"value"`
}

// Throughput is what a cluster of the parts does at the most, and by which part
// it is bound: the first limit of each, the others follow by size.
type Throughput struct {
	Write []Limit `json:"write_bytes_per_second"`
	Read  []Limit `json:"read_bytes_per_second"`
	// Creates and Stats are the metadata service's: one leader answers them all,
	// whatever the number of hosts.
	Creates float64 `json:"creates_per_second"`
	Stats   float64 `json:"stats_per_second"`
}

const gb = 1e9

// Compute takes each part as busy to the brim, and work as spread evenly: what a
// real cluster does is less, by its skew and its neighbours.
func Compute(p Parts) (Throughput, error) {
	if err := p.validate(); err != nil {
		return Throughput{}, err
	}
	k, n := float64(p.Scheme.K), float64(p.Scheme.Chunks())
	hosts, devices, clients := float64(p.Hosts), float64(p.Hosts*p.Devices), float64(p.Clients)
	useful := k / n // of what is written and sent
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
