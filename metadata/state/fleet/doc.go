// Package fleet has hosts, devices and the chunks on them. That is registration
// and states of devices, stripes, grants of stripe numbers, the repair queue,
// intents of movers, and tombstones. It also has the reports that compare a
// device with the records.
//
// When a device fails, for example, SetDeviceState takes it out and adds a job that scans its
// chunks. The job queues each stripe that has become less safe (QueueRepair). A mover leases the
// stripe, announces the new chunk (BeginRepair) and records it (CommitRepair), which leaves a
// tombstone for the old one.
package fleet

// The compiler inlines the methods of View.K only in packages that import keys themselves. Otherwise
// each key is allocated.
import _ "github.com/morainefs/moraine/metadata/state/keys"
