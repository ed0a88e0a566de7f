package keys

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/record"
)

// fleetKeys are the keys of hosts and devices, of what devices have, and of the repair queue.
type fleetKeys struct{ partition }

func (k fleetKeys) Host(node string) []byte { return append(k.Key(record.TabHost, len(node)), node...) }

func (k fleetKeys) Device(d moraine.DeviceID) []byte {
	return record.Be32(k.Key(record.TabDevice, 4), uint32(d))
}

func (k fleetKeys) DeviceUUID(u moraine.UUID) []byte {
	return append(k.Key(record.TabDeviceUUID, 16), u[:]...)
}

// onDevice builds device | stripe | index in a table. Without stripe and index it returns a prefix.
func (k fleetKeys) onDevice(table byte, d moraine.DeviceID) []byte {
	return record.Be32(k.Key(table, 13), uint32(d))
}

func (k fleetKeys) DeviceChunks(d moraine.DeviceID) []byte {
	return k.onDevice(record.TabDeviceChunk, d)
}

func (k fleetKeys) DeviceChunk(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabDeviceChunk, d), c)
}

func (k fleetKeys) MemoryChunks(d moraine.DeviceID) []byte { return k.onDevice(record.TabMemory, d) }

// MemoryChunk returns the key of a chunk in memory. at is the MemoryAt of its stripe: a device's chunks
// are in the order of their commits.
func (k fleetKeys) MemoryChunk(d moraine.DeviceID, at uint64, c moraine.ChunkID) []byte {
	b := record.Be32(k.Key(record.TabMemory, 21), uint32(d))
	return record.ChunkKey(record.Be64(b, at), c)
}

func (k fleetKeys) Tombstones(d moraine.DeviceID) []byte { return k.onDevice(record.TabTombstone, d) }

func (k fleetKeys) Kept(d moraine.DeviceID) []byte { return k.onDevice(record.TabKept, d) }

func (k fleetKeys) KeptOn(d moraine.DeviceID) []byte { return k.onDevice(record.TabKeptOn, d) }

// Tombstone returns the key of a chunk's tombstone in the table of kept tombstones or in the other
// one.
func (k fleetKeys) Tombstone(kept bool, d moraine.DeviceID, deadSince uint64, c moraine.ChunkID) []byte {
	tab := byte(record.TabTombstone)
	if kept {
		tab = record.TabKept
	}
	b := record.Be32(k.Key(tab, 21), uint32(d))
	return record.ChunkKey(record.Be64(b, deadSince), c)
}

func (k fleetKeys) TombstoneAt(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabTombstoneAt, d), c)
}

func (k fleetKeys) Repair(spare uint8, s moraine.StripeID) []byte {
	return record.Be64(append(k.Key(record.TabRepair, 9), spare), uint64(s))
}

func (k fleetKeys) RepairStripe(s moraine.StripeID) []byte {
	return k.U64(record.TabRepairStripe, uint64(s))
}

func (k fleetKeys) Intents(s moraine.StripeID) []byte { return k.U64(record.TabIntent, uint64(s)) }

func (k fleetKeys) Intent(c moraine.ChunkID) []byte {
	return record.ChunkKey(k.Key(record.TabIntent, 9), c)
}

func (k fleetKeys) EndedIntents(d moraine.DeviceID) []byte {
	return k.onDevice(record.TabEndedIntent, d)
}

func (k fleetKeys) EndedIntent(d moraine.DeviceID, c moraine.ChunkID) []byte {
	return record.ChunkKey(k.onDevice(record.TabEndedIntent, d), c)
}
