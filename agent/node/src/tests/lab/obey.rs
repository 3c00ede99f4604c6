//! What the lab does with a node's outputs: its simulated kernel and segment.

use super::*;

impl Lab {
    pub(super) fn execute(&mut self, i: usize, output: Output) {
        let at = self.at();
        match output {
            Output::Advert { vip, leg, source, packets, .. } => {
                let host = &self.hosts[i];
                let mute = || host.mute_legs.contains(&leg).then_some(1);
                let errno = host.send_errno.or_else(mute).or_else(|| (!host.up).then_some(100));
                let result = errno.map_or(Ok(()), |errno| Err(SendError { errno }));
                if result.is_ok() && !self.mute.contains(&i) {
                    for p in 0..self.hosts.len() {
                        if p != i && !self.cut.contains(&(i, p)) {
                            let IpAddr::V4(source) = source else { continue };
                            let payload = &packets[0].payload;
                            self.push(Duration::from_micros(100), p, Ev::Packet(packet(source, payload)));
                        }
                    }
                }
                self.push(Duration::ZERO, i, Ev::Sent(vip, leg, result));
            }
            Output::Datagram { to, bytes } => {
                let peer = (0..self.hosts.len()).find(|p| channel_address(*p) == to);
                if let Some(p) = peer.filter(|p| !self.cut_channel.contains(&(i, *p))) {
                    self.push(Duration::from_micros(150), p, Ev::Datagram(channel_address(i), bytes));
                }
            }
            Output::Step(step) => self.step(i, step),
            Output::Probe { vip, target, tries, wait, .. } => {
                let peer = (0..self.hosts.len()).find(|p| IpAddr::V4(source(*p)) == target);
                let cut = |p: usize| self.cut.contains(&(i, p)) || self.cut.contains(&(p, i));
                let answered = peer.is_some_and(|p| !cut(p) && self.hosts[p].up && self.hosts[i].up);
                let after = if answered { Duration::from_micros(200) } else { wait * u32::from(tries) };
                let outcome = match (answered, !self.isolated.contains(&i) && self.hosts[i].up) {
                    (true, _) => ProbeOutcome::Target,
                    (false, true) => ProbeOutcome::Others,
                    (false, false) => ProbeOutcome::Nobody,
                };
                self.push(after, i, Ev::Probed(vip, target, outcome));
            }
            Output::StartCheck { check, sequence, .. } if usize::from(check.0) >= self.hosts[i].config.checks.len() => {
                let backend = check.0 - u16::try_from(self.hosts[i].config.checks.len()).expect("a few");
                let ok = !self.hosts[i].dead_backends.contains(&backend);
                self.push(ms(1), i, Ev::Check(check, sequence, (!ok).then_some(Failure::Other)));
            }
            Output::StartCheck { check, sequence, .. } => match self.hosts[i].probes {
                Probes::Good => self.push(ms(1), i, Ev::Check(check, sequence, None)),
                Probes::Bad => self.push(ms(1), i, Ev::Check(check, sequence, Some(Failure::Refused))),
                Probes::Status => self.push(ms(1), i, Ev::Check(check, sequence, Some(Failure::Answered))),
                Probes::StatusOf(bad) => {
                    self.push(ms(1), i, Ev::Check(check, sequence, (bad == check).then_some(Failure::Answered)));
                }
                Probes::Silent => self.push(ms(60), i, Ev::Check(check, sequence, None)),
            },
            Output::Event(event) => {
                self.hosts[i].last_event = event.id;
                self.hosts[i].events.push((at, event));
            }
            Output::Persist(intents) => self.hosts[i].intents = intents,
            Output::Answer { token, answer } => self.hosts[i].answers.push((token, answer)),
            Output::Owner(record) => {
                self.hosts[i].records.insert(record.vip.0, record);
            }
            Output::RunHook { .. } | Output::State { .. } | Output::Look { .. } | Output::Replace => {}
            Output::Bgp { neighbor, output } => self.router_is_told(i, neighbor, output),
            Output::BgpSession { .. } | Output::Bfd(_) | Output::Elected { .. } => {}
            Output::Stopped => self.hosts[i].stopped = true,
        }
    }

    fn step(&mut self, i: usize, step: Step) {
        let now = self.now;
        let host = &mut self.hosts[i];
        let mut result = Ok(());
        let event = match &step {
            Step::AddAddress { ifindex, ip, prefix, lifetime } => {
                if let Some(errno) = host.add_errno {
                    result = Err(StepError { errno, what: format!("add {ip}: refused") });
                    None
                } else if *ifindex != LO && !host.present
                    || *ifindex != LO && *ifindex != host.ifindex && !host.vmacs.values().any(|i| i == ifindex)
                {
                    result = Err(StepError { errno: 19, what: "no such device".to_owned() });
                    None
                } else {
                    host.kernel.insert((*ifindex, *ip, *prefix), (true, Some(now + *lifetime)));
                    let a = Address {
                        ifindex: *ifindex,
                        ip: *ip,
                        prefix: *prefix,
                        marked: true,
                        secondary: false,
                        tentative: false,
                    };
                    self.push(*lifetime, i, Ev::Expire);
                    Some(Ev::Addr(a))
                }
            }
            Step::RemoveAddress { ifindex, ip, prefix } => {
                let gone = host.kernel.remove(&(*ifindex, *ip, *prefix)).is_some();
                host.routes.retain(|route| route.source != Some(*ip));
                gone.then_some(Ev::AddrGone(*ifindex, *ip, *prefix))
            }
            Step::Announce { ifindex, ip } => {
                assert!(
                    host.add_errno.is_some() || host.kernel.keys().any(|k| k.0 == *ifindex && k.1 == *ip),
                    "lb{i} announces {ip}, which isn't in its kernel"
                );
                None
            }
            Step::OpenVrrp { socket } => {
                host.sockets.insert(*socket);
                None
            }
            Step::CloseVrrp { socket } => {
                host.sockets.remove(socket);
                None
            }
            Step::AddRoute { route } => {
                let there = |ip: IpAddr| host.kernel.keys().any(|key| key.1 == ip);
                match host.route_errno.or_else(|| (!route.source.is_none_or(there)).then_some(22)) {
                    Some(errno) => result = Err(StepError { errno, what: format!("add route {route}: refused") }),
                    None => drop(host.routes.insert(*route)),
                }
                Some(Ev::Ours)
            }
            Step::RemoveRoute { route } => host.routes.remove(route).then_some(Ev::Ours),
            Step::AddRule { rule } => {
                host.rules.insert(*rule);
                Some(Ev::Ours)
            }
            Step::RemoveRule { rule } => host.rules.remove(rule).then_some(Ev::Ours),
            Step::Guard { addresses } => {
                host.guard.clone_from(addresses);
                None
            }
            Step::EventFilter { .. } | Step::Balance(_) | Step::Cut(_) => None,
            Step::AddVmac { vmac } => {
                let ifindex = 1_000 + u32::from(vmac.vrid);
                host.vmacs.insert(*vmac, ifindex);
                Some(Ev::Link(device(*vmac, ifindex)))
            }
            Step::RemoveVmac { vmac } => {
                let ifindex = host.vmacs.remove(vmac);
                host.kernel.retain(|key, _| Some(key.0) != ifindex);
                ifindex.map(Ev::LinkGone)
            }
        };
        self.push(Duration::ZERO, i, Ev::Done(step, result));
        if let Some(event) = event {
            self.push(Duration::from_micros(50), i, event);
        }
    }
}
