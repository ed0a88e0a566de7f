package demo

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/slowdisk"
)

// heldCluster is a second, small cluster. The devices of its chunkservers can be made to accept no
// writes, so that chunks stay in memory.
type heldCluster struct {
	*devcluster.Cluster
	client *client.Client
	disks  []*slowdisk.Disk // of n1, n2 ...

	closeClient func()
}

// startHeld returns when the cluster can store at full protection.
func (d *demo) startHeld(ctx context.Context) (_ *heldCluster, err error) {
	h := &heldCluster{closeClient: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	dir, err := filepath.Abs(filepath.Join(d.cfg.Dir, "held"))
	if err != nil {
		return nil, err
	}
	for n := 1; n <= heldHosts; n++ {
		name := fmt.Sprintf("n%d", n)
		disk, err := slowdisk.Mount(filepath.Join(dir, name), filepath.Join(d.cfg.Dir, "held-disks", name))
		if err != nil {
			return nil, fmt.Errorf("mount a device that can be held: %w", err)
		}
		h.disks = append(h.disks, disk)
	}
	h.Cluster, err = devcluster.Start(ctx, devcluster.Config{Binary: d.cfg.Binary, Dir: dir, Mode: d.cfg.Mode, Metadata: 1,
		Chunkservers: heldHosts, ChunkserverArgs: []string{"--capacity", heldCapacity}})
	if err != nil {
		return nil, err
	}
	if h.client, h.closeClient, err = d.cfg.Connect(ctx, h.Cluster); err != nil {
		h.closeClient = func() {}
		return nil, err
	}
	return h, d.green(ctx, h.Cluster)
}

// green waits until a cluster's status is green.
func (d *demo) green(ctx context.Context, c *devcluster.Cluster) error {
	out, err := exec.CommandContext(ctx, d.cfg.Binary, "cluster", "status", "--wait", "60s",
		"--endpoint", c.Endpoint(), "--certs", c.Certs(), "--identity", "admin", "--mode", c.Mode()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("moraine cluster status: %w\n%s", err, out)
	}
	return nil
}

// hold makes the devices accept no chunks, until release.
func (h *heldCluster) hold() {
	for _, disk := range h.disks {
		disk.Hold("segments")
	}
}

func (h *heldCluster) release() {
	for _, disk := range h.disks {
		disk.Release()
	}
}

// kill ends chunkservers with SIGKILL while their devices are held. Writes that wait are lost, as
// they are when a process ends before it writes. It releases the other devices.
func (h *heldCluster) kill(count int) ([]*devcluster.Node, error) {
	nodes := h.Nodes(devcluster.Chunkserver)[:count]
	for _, n := range nodes {
		if err := n.Signal(syscall.SIGKILL); err != nil {
			return nil, err
		}
	}
	for _, disk := range h.disks[:count] {
		disk.Lose()
	}
	for _, n := range nodes {
		if err := n.Kill(); err != nil { // it is gone
			return nil, err
		}
	}
	h.release()
	return nodes, nil
}

// close ends the cluster and removes the mounts.
func (h *heldCluster) close() error {
	h.release() // a process that writes ends only then
	h.closeClient()
	var errs []error
	if h.Cluster != nil {
		errs = append(errs, h.Cluster.Close())
	}
	for _, disk := range h.disks {
		errs = append(errs, disk.Unmount())
	}
	return errors.Join(errs...)
}
