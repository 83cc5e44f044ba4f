package kubelet

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// beat is how often the node says that it lives. A kubelet does so every 10 s; tests do not want to wait for as long until
	// a node is missed.
	beat = 2 * time.Second
	// leaseTime is what the lease says how long it is good for.
	leaseTime = 40 * time.Second
	// version is what the node says it runs.
	version = "v1.36.3"
)

// register makes the Node object, or brings the one up to date that there is.
func (n *Node) register(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	labels := map[string]string{corev1.LabelHostname: n.options.Name, corev1.LabelOSStable: "linux",
		corev1.LabelArchStable: runtime.GOARCH}
	maps.Copy(labels, n.options.Labels)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.options.Name, Labels: labels}}
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("registering: %w", err)
	}
	if err := n.renewLease(ctx); err != nil {
		return err
	}
	return n.reportNode(ctx)
}

// heartbeat says that the node lives until it does not.
func (n *Node) heartbeat() {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-n.life.Done():
			return
		case <-ticker.C:
		}
		if err := n.live(); err != nil && n.life.Err() == nil {
			n.options.Log.Info("the API server does not hear that the node lives", "error", err)
		}
	}
}

// live renews the lease, and the status where it says that the node is not ready, as it does after a time without word of
// it.
func (n *Node) live() error {
	ctx, cancel := context.WithTimeout(n.life, callLimit)
	defer cancel()
	if err := n.renewLease(ctx); err != nil {
		return err
	}
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.options.Name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		return nil
	}
	return n.reportNode(ctx)
}

func (n *Node) renewLease(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(leaseTime/time.Second)
	first := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.options.Name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.options.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}}
	lease, err := leases.Get(ctx, n.options.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = leases.Create(ctx, first, metav1.CreateOptions{})
	case err == nil:
		lease.Spec.RenewTime, lease.Spec.HolderIdentity = &now, &n.options.Name
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	return nil
}

// reportNode writes the node's status. Controllers write into the object at the same time.
func (n *Node) reportNode(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	for {
		node, err := nodes.Get(ctx, n.options.Name, metav1.GetOptions{})
		if err == nil {
			n.fillIn(&node.Status)
			_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("reporting the node's status: %w", err)
		}
	}
}

func (n *Node) fillIn(s *corev1.NodeStatus) {
	s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.options.Address.String()}}
	s.Capacity, s.Allocatable = n.options.Capacity, n.options.Capacity
	s.DaemonEndpoints.KubeletEndpoint.Port = n.server.port()
	s.NodeInfo = corev1.NodeSystemInfo{MachineID: n.options.Name, SystemUUID: n.options.Name, BootID: n.options.Name,
		KubeletVersion: version, ContainerRuntimeVersion: "process://" + version, KernelVersion: "unknown", OSImage: "processes",
		OperatingSystem: "linux", Architecture: runtime.GOARCH}
	n.setCondition(s, corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory")
	n.setCondition(s, corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure")
	n.setCondition(s, corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID")
	n.setCondition(s, corev1.NodeReady, corev1.ConditionTrue, "KubeletReady")
}

func (n *Node) setCondition(s *corev1.NodeStatus, t corev1.NodeConditionType, is corev1.ConditionStatus, reason string) {
	now := metav1.Now()
	c := corev1.NodeCondition{Type: t, Status: is, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}
	i := slices.IndexFunc(s.Conditions, func(c corev1.NodeCondition) bool { return c.Type == t })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if s.Conditions[i].Status == is {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
}
