// Package fleet has hosts and devices and the chunks on them: registration and
// states of devices, stripes, grants of stripe numbers, the repair queue,
// intents of movers, tombstones, and the reports that compare a device with the
// records.
//
// For example, a device fails: SetDeviceState takes it out and adds a job that
// goes through its chunks. The job queues each stripe that has become less safe
// (QueueRepair). A mover leases the stripe, announces the new chunk
// (BeginRepair) and records it (CommitRepair), which leaves a tombstone for the
// old one.
package fleet
